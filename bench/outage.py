"""How long a sandbox's connection outlives the gateway that is killed, and until a new one is answered by the next: by
the clock, from the kill. How long the first create takes after the supervisor was killed: it starts the next one. And
for how long streams of commands are silent when the daemon is killed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench.account import daemon_pid, gateway_pid, supervisor_pid
from bench.contest import Contender, contest
from bench.plan import Plan
from bench.report import Section
from bench.worker import TOTAL
from paddock import Sandbox
from paddock.linux import pidfd
from paddock.linux.descriptors import closing
from paddock.supervisor.layout import default_state_dir

_POLICY = {"egress": {"mock": [{"host": "here.test", "body": "hello"}]}}
_INSIDE = r"""
import socket, time
def ask(kept):
    kept.sendall(b"GET / HTTP/1.1\r\nhost: here.test\r\n\r\n")
    return kept.recv(4096).startswith(b"HTTP/1.1 200 ")
address = socket.gethostbyname("here.test"), 80
kept = socket.create_connection(address)
assert ask(kept)
print("up", flush=True)
try: kept.recv(1)
except ConnectionError: pass
print(time.clock_gettime(time.CLOCK_REALTIME), flush=True)
while True:
    try:
        with socket.create_connection((socket.gethostbyname("here.test"), 80)) as new:
            if ask(new): break
    except OSError: time.sleep(0.001)
print(time.clock_gettime(time.CLOCK_REALTIME), flush=True)
"""
_STREAMS, _PATIENCE_SECONDS = 100, 60
_PRINTS = "mkfifo /tmp/$$; exec 3<>/tmp/$$; while :; do read -t 0.1 -u 3; echo; done"


class Outage:
    """The sandbox is the same each time, and nobody restarts anything."""

    def __init__(self) -> None:
        self._state = default_state_dir()
        self._sandbox = Sandbox.create(policy=_POLICY, ttl=900)

    def once(self) -> dict[str, float]:
        with self._sandbox.start(("python3", "-c", _INSIDE), timeout=300) as process:
            lines = process.stdout.lines()
            assert next(lines, "").strip() == "up", process.stderr.read()
            killed = _kill_gateway(self._state)
            offline, back = _moment(lines), _moment(lines)
        return {TOTAL: back - killed, "offline": offline - killed}

    def close(self) -> None:
        self._sandbox.kill()


class FirstCreate:
    """The supervisor is dead and its daemon lives."""

    def __init__(self) -> None:
        self._state = default_state_dir()
        Sandbox.create().kill()

    def once(self) -> dict[str, float]:
        _kill(supervisor_pid(self._state))
        start = time.perf_counter()
        box = Sandbox.create()
        seconds = time.perf_counter() - start
        box.kill()
        return {TOTAL: seconds}

    def close(self) -> None: ...


class Streams:
    """A hundred commands that print ten times a second. The longest silence of any, from before the kill of the daemon
    until each has printed after the next daemon's first answer."""

    def __init__(self) -> None:
        self._state = default_state_dir()
        self._sandbox = Sandbox.create(ttl=900)
        self._processes = [self._sandbox.start(("bash", "-c", _PRINTS)) for _ in range(_STREAMS)]
        self._printed, self._silence = [0.0] * _STREAMS, [0.0] * _STREAMS
        for number in range(_STREAMS):
            threading.Thread(target=self._follow, args=(number,), daemon=True).start()

    def once(self) -> dict[str, float]:
        self._await_all()
        self._silence[:] = [0.0] * _STREAMS
        start = time.perf_counter()
        _kill(daemon_pid(self._state))
        self._sandbox.exec(("true",))
        answered = time.perf_counter()
        self._await_all()
        return {TOTAL: max(self._silence), "the next daemon's first answer": answered - start}

    def close(self) -> None:
        self._sandbox.kill()

    def _follow(self, number: int) -> None:
        for _ in self._processes[number].stdout:
            now = time.perf_counter()
            if self._printed[number]:
                self._silence[number] = max(self._silence[number], now - self._printed[number])
            self._printed[number] = now

    def _await_all(self) -> None:
        """Wait until each has printed twice."""
        for _ in range(2):
            now = time.perf_counter()
            while min(self._printed) < now:
                assert time.perf_counter() - now < _PATIENCE_SECONDS, "a stream has ended"
                time.sleep(0.005)


def _kill(pid: int | None) -> None:
    """Return when it is dead."""
    assert pid is not None, "there is none"
    with closing(pidfd.open(pid)) as process:
        os.kill(pid, signal.SIGKILL)
        pidfd.wait(process)


def _kill_gateway(state: Path) -> float:
    pid = gateway_pid(state)
    assert pid is not None, "no gateway is there"
    at = time.clock_gettime(time.CLOCK_REALTIME)  # the one clock that is the same inside
    os.kill(pid, signal.SIGKILL)
    return at


def _moment(lines: Iterator[str]) -> float:
    return float(next(lines))


def measure(plan: Plan) -> list[Section]:
    back = "back, without a restart"
    gateway = "after kill -9 of the gateway: a connection is reset, a new one is answered"
    return [
        _section(plan, "outage", gateway, "Outage", back),
        _section(plan, "silence", "after kill -9 of the daemon: 100 streams of commands", "Streams", "longest silence"),
        _section(plan, "first", "after kill -9 of the supervisor: the first create", "FirstCreate", back),
    ]


def _section(plan: Plan, name: str, title: str, subject: str, what: str) -> Section:
    section = Section(name, title)
    one = Contender(what, f"bench.outage:{subject}", state=True)
    for record in contest([one], rounds=plan.rounds(5), block=4).values():
        section.add(record)
    return section
