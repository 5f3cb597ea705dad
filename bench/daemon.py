"""What a program pays to reach the daemon, and how the daemon bears a crowd: `python -m bench.daemon --sandboxes 1000`.

The crowd is an open loop: commands start at fixed moments, whether or not the ones before have ended, and a latency is
counted from the moment at which its command was due. `make bench` plays a small crowd.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.contest import contest
from bench.density import private_of
from bench.figures import summarize
from bench.plan import Plan
from bench.report import Row, Section, show
from bench.shell import PADDOCK, command
from paddock import Sandbox
from paddock.client import daemon_status, default_transport, session

_IMPORT = "from paddock import Sandbox"
_FIRST = f"{_IMPORT}\nbox = Sandbox.create()\nbox.exec('true')"
_FLOOD = """import sys, threading
from paddock import Sandbox
def run():
    box = Sandbox.connect(sys.argv[1])
    while True:
        box.exec("head -c 65536 /dev/zero")
for _ in range(8):
    threading.Thread(target=run).start()
"""
_CALLERS = 32


@dataclass(frozen=True)
class Crowd:
    """`rate`: commands a second, over all sandboxes in turn."""

    sandboxes: int = 100
    rate: int = 200
    seconds: float = 10.0
    rest_seconds: float = 75.0
    """After the last sandbox has ended: the daemon signs its log and sweeps once more."""
    idle_seconds: float = 20.0


def measure(plan: Plan) -> list[Section]:
    return [_program(plan), _crowd(Crowd())]


def _program(plan: Plan) -> Section:
    section = Section(
        "program", "a program from start to end, with the daemon there; every line does what those above do"
    )
    bare = command("python -c pass", sys.executable, "-c", "pass")
    contenders = (
        bare,
        command(_IMPORT, sys.executable, "-c", _IMPORT),
        command("with a first create and exec", sys.executable, "-c", _FIRST, state=True),
        PADDOCK,
    )
    records = contest(contenders, rounds=plan.rounds(15), block=1)
    for record in records.values():
        section.add(record)
    for record in (records[one.name] for one in contenders[1:]):
        pairs = zip(record.seconds(), records[bare.name].seconds(), strict=True)
        above = [1e3 * (whole - python) for whole, python in pairs]
        section.rows.append(Row(f"{record.name}, above bare Python", above, part=True))
    return section


def _crowd(crowd: Crowd) -> Section:
    section = Section("crowded", f"{crowd.sandboxes} sandboxes alive, {crowd.rate} commands a second over all of them")
    with tempfile.TemporaryDirectory(prefix="pb-", dir="/var/tmp") as directory:
        state = Path(directory)
        transport = default_transport(state)
        boxes = [Sandbox.create(level="jail", ttl=3600, transport=transport) for _ in range(crowd.sandboxes)]
        try:
            others, flooded = boxes[1:], boxes[0]
            errors: list[Exception] = []
            quiet = _load(others, crowd, errors)
            with _flood(state, flooded):
                beside = _load(others, crowd, errors)
            section.rows.append(Row("a command", quiet))
            section.rows.append(Row("a command while one sandbox floods", beside))
            slowest = [summarize(values).p99 for values in (quiet, beside)]
            section.notes.append("99 of 100 within {:.0f} ms, within {:.0f} while one floods".format(*slowest))
            daemon = _pid(state)
            section.notes.append(
                f"{len(errors)} errors; the daemon holds {private_of(daemon) / 1024:.0f} MiB for itself"
            )
            section.rows.append(Row("after kill -9 of the daemon, the next answer", [1e3 * _outage(state, boxes[-1])]))
        finally:
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(Sandbox.kill, boxes))
        time.sleep(crowd.rest_seconds)
        daemon, began = _pid(state), time.monotonic()
        before = _wakeups(daemon)
        time.sleep(crowd.idle_seconds)
        per_minute = 60 * (_wakeups(daemon) - before) / (time.monotonic() - began)
        section.notes.append(
            f"idle, it holds {private_of(daemon) / 1024:.0f} MiB and wakes {per_minute:.0f} times a minute"
        )
        session(state).close()
        os.kill(_pid(state), signal.SIGTERM)
    return section


def _load(boxes: Sequence[Sandbox], crowd: Crowd, errors: list[Exception]) -> list[float]:
    """Latencies in milliseconds."""
    began, count = time.monotonic() + 0.1, int(crowd.rate * crowd.seconds)
    numbers, latencies = itertools.count(), [0.0] * count

    def caller() -> None:
        while (number := next(numbers)) < count:
            due = began + number / crowd.rate
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                boxes[number % len(boxes)].exec(["true"])
            except Exception as error:
                errors.append(error)
            latencies[number] = 1e3 * (time.monotonic() - due)

    _in_threads([caller] * _CALLERS)
    return latencies


@contextmanager
def _flood(state: Path, box: Sandbox) -> Generator[None]:
    """Eight callers of another program run commands in one sandbox, one after the other, as fast as they get answers.
    In this program they would take turns at the interpreter with those whose time is taken."""
    environment = {**os.environ, "PADDOCK_STATE_DIR": str(state)}
    with subprocess.Popen([sys.executable, "-c", _FLOOD, box.id], env=environment) as flood:
        try:
            yield
        finally:
            flood.terminate()


def _in_threads(work: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _outage(state: Path, box: Sandbox) -> float:
    os.kill(_pid(state), signal.SIGKILL)
    killed = time.monotonic()
    box.files.exists("/")
    return time.monotonic() - killed


def _pid(state: Path) -> int:
    status = daemon_status(state)
    assert status is not None, "no daemon runs"
    return status.pid


def _wakeups(pid: int) -> int:
    """Voluntary switches of all its threads (proc_pid_status(5))."""
    lines = (
        line for task in Path(f"/proc/{pid}/task").iterdir() for line in (task / "status").read_text().splitlines()
    )
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sandboxes", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=200, help="commands a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    crowd = Crowd(sandboxes=options.sandboxes, rate=options.rate, seconds=options.seconds, idle_seconds=60.0)
    show(_crowd(crowd), Console(width=None if sys.stdout.isatty() else 120))
    return 0


if __name__ == "__main__":
    sys.exit(main())
