"""Commands in the foreground outlive the daemon that they were started with."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paddock import Process, Sandbox
from paddock.client import default_transport, stop_daemon
from paddock.errors import LevelUnavailableError, UnsupportedError
from paddock.model import Limit, PtySize
from paddock.wire import Connection, Frame, Kind
from tests.backends.engines import podman_service
from tests.daemon.conftest import daemon_pid
from tests.orphans import wait_until

_LINES = 200
_FILLS = 200_000
"""More than a pipe holds. A command is kept before anything is read of it, so what prints on is kept."""
_PRINTS = f"""
import os, sys, time
print("x" * {_FILLS}, flush=True)
for number in range({_LINES}):
    print("out", number, flush=True)
    print("err", number, file=sys.stderr, flush=True)
    if number == {_LINES} // 2:
        open("half" + sys.argv[1], "w").close()
        while not os.path.exists("go"):
            time.sleep(0.02)
"""
"""Prints half, and the other half when it may."""
_NUMBERS = "".join(f"out {number}\n" for number in range(_LINES))
_OUT, _ERR = "x" * _FILLS + "\n" + _NUMBERS, _NUMBERS.replace("out", "err")


@pytest.fixture(scope="module")
def engine(state_of_module: Path) -> Generator[None]:
    """Podman with a store of its own, of which the next daemon knows."""
    with podman_service() as service, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"unix://{service.socket}")
        stop_daemon(state_of_module, ends_sessions=False)
        yield


_BY_FRAMES = ["gvisor", pytest.param("microvm", marks=pytest.mark.slow)]
"""The other levels pass the ends of pipes, which the supervisor holds. It does so for a container as for a jail."""
_EACH = [pytest.param("jail", marks=pytest.mark.both), "container", *_BY_FRAMES]


@pytest.fixture(params=["jail", *_BY_FRAMES])
def box(request: pytest.FixtureRequest, module_state: Path) -> Generator[Sandbox]:
    if request.param == "container":
        request.getfixturevalue("engine")
    try:
        made = Sandbox.create(level=request.param, ttl_seconds=900, transport=default_transport(module_state))
    except LevelUnavailableError as error:
        pytest.skip(str(error))
    with made:
        yield made


def _start_terminal(box: Sandbox, script: str, size: PtySize) -> Process:
    try:
        return box.start(script, pty=size)
    except UnsupportedError as error:
        pytest.skip(str(error))


def _kill(module_state: Path) -> None:
    pid = daemon_pid(module_state)
    process = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        select.select([process], [], [])
    finally:
        os.close(process)


def _restart(module_state: Path) -> None:
    assert stop_daemon(module_state, ends_sessions=False)


def _streamed(box: Sandbox, number: int) -> tuple[str, str, int]:
    with box.start(["python3", "-c", _PRINTS, str(number)]) as process:
        out = b"".join(iter(process.stdout.read, b""))
        err = b"".join(iter(process.stderr.read, b""))
        return out.decode(), err.decode(), process.wait().exit_code


def _run(box: Sandbox, number: int) -> tuple[str, str, int]:
    done = box.exec(["python3", "-c", _PRINTS, str(number)])
    return done.stdout, done.stderr, done.exit_code


@pytest.mark.parametrize("box", _EACH, indirect=True)
@pytest.mark.parametrize("end", [_kill, _restart])
def test_no_command_and_no_byte_is_lost_with_a_daemon(
    end: Callable[[Path], None], box: Sandbox, module_state: Path
) -> None:
    count = 6
    with ThreadPoolExecutor(2 * count) as threads:
        commands = [threads.submit(_streamed if number % 2 else _run, box, number) for number in range(count)]
        for _ in range(2):
            assert wait_until(lambda: len(box.filesystem.list(".")) >= count, seconds=60)
            end(module_state)
        box.filesystem.write("go", "")
        assert [command.result() for command in commands] == [(_OUT, _ERR, 0)] * count


def test_a_hundred_streams_go_on(box: Sandbox, module_state: Path) -> None:
    count, lines = 100, 10
    script = f"""
        say() {{ n=0; while [ $n -lt {lines} ]; do echo $1 $n; echo $1 $n >&2; n=$((n + 1)); done; }}
        say first; read line; say $line"""
    said = [b"".join(b"%s %d\n" % (word, number) for number in range(lines)) for word in (b"first", b"then")]
    with contextlib.ExitStack() as stack:
        commands = [stack.enter_context(box.start(["sh", "-c", script], stdin=True)) for _ in range(count)]
        for process in commands:
            assert b"".join(process.stdout.read(1) for _ in said[0]) == said[0]
        _kill(module_state)
        for process in commands:
            process.stdin.write("then\n")
        for process in commands:
            assert b"".join(iter(process.stdout.read, b"")) == said[1]
            assert b"".join(iter(process.stderr.read, b"")) == b"".join(said)
            assert process.wait().exit_code == 0


def test_what_a_command_is_given_reaches_it_once(box: Sandbox, module_state: Path) -> None:
    given = bytes(range(256)) * 20_000
    script = f"head -c {_FILLS} /dev/zero; touch half; while [ ! -e go ]; do sleep 0.05; done; cat"
    with ThreadPoolExecutor(1) as threads:
        command = threads.submit(box.exec, script, input=given, capture_bytes=3 * len(given))
        assert wait_until(lambda: box.filesystem.exists("half"))
        _kill(module_state)
        box.filesystem.write("go", "")
        assert (command.result().out.head + command.result().out.tail)[_FILLS:] == given


def _echoes(
    box: Sandbox, module_state: Path, end: Callable[[Path], None], size: int, start: Callable[[str], Process]
) -> None:
    """What is written to eight commands, and read of them meanwhile, comes back whole while three daemons end."""
    count = 8
    given = [random.Random(number).randbytes(size) for number in range(count)]
    read = [0] * count

    def write(process: Process, data: bytes) -> None:
        for at in range(0, size, 70_001):
            process.stdin.write(data[at : at + 70_001])

    def echo(number: int) -> bytes:
        parts: list[bytes] = []
        script = f"[ ! -t 0 ] || stty raw -echo; echo; exec head -c {size}"
        with start(script) as process:
            assert process.stdout.read(1) == b"\n"  # no byte is written to a terminal before it is raw
            written = threads.submit(write, process, given[number])
            for part in iter(process.stdout.read, b""):
                parts.append(part)
                read[number] += len(part)
            written.result()
            assert process.wait().exit_code == 0
            return b"".join(parts)

    def has_read(most: int) -> bool:
        return min(read) > most or any(command.done() for command in commands)

    with ThreadPoolExecutor(2 * count) as threads:
        commands = [threads.submit(echo, number) for number in range(count)]
        for share in (8, 4, 2):
            assert wait_until(partial(has_read, size // share), seconds=60)
            box.filesystem.list(".")  # there is a daemon
            end(module_state)
        for number, command in enumerate(commands):
            assert command.result() == given[number]


@pytest.mark.parametrize("end", [_kill, _restart])
def test_what_is_written_to_commands_while_daemons_end_comes_back_whole(
    end: Callable[[Path], None], box: Sandbox, module_state: Path
) -> None:
    _echoes(box, module_state, end, 3 << 20, partial(box.start, stdin=True))


@pytest.mark.parametrize("end", [_kill, _restart])
def test_terminals_go_on_as_whole(end: Callable[[Path], None], box: Sandbox, module_state: Path) -> None:
    size = PtySize(rows=24, columns=80)
    _start_terminal(box, "true", size).close()
    _echoes(box, module_state, end, 1 << 20, partial(box.start, pty=size))


def test_what_a_command_has_read_takes_no_room(box: Sandbox, module_state: Path) -> None:
    script = "[ ! -t 0 ] || stty raw -echo; echo; exec head -c 8388608 > /dev/null"
    try:
        process = box.start(script, pty=PtySize(rows=24, columns=80))
    except UnsupportedError:
        process = box.start(script, stdin=True)
    with process:
        assert process.stdout.read(1) == b"\n"
        for _ in range(127):
            process.stdin.write(b"x" * 65536)
        journals: list[os.stat_result] = []
        for one in Path(f"/proc/{daemon_pid(module_state)}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                journals += [one.stat()] if str(one.readlink()).startswith(f"{module_state}/#") else []
        assert max(journal.st_size for journal in journals) > 6 << 20
        assert sum(journal.st_blocks * 512 for journal in journals) < 4 << 20
        process.stdin.write(b"x" * 65536)
        assert process.wait().exit_code == 0


def test_a_terminal_is_resized_and_ended_by_the_next_daemon(box: Sandbox, module_state: Path) -> None:
    with _start_terminal(box, "cat; stty size", PtySize(rows=20, columns=30)) as process:
        process.stdin.write("before\n")
        assert process.stdout.read(1) == b"b"
        _kill(module_state)
        process.resize(rows=40, columns=50)
        process.stdin.write("after\n")
        process.stdin.close()
        said = b"".join(iter(process.stdout.read, b"")).replace(b"\r", b"").decode()
        assert said.count("before\n") + said.count("after\n") == 3  # the first one is cut, each is echoed, and said
        assert said.endswith("40 50\n")
        assert process.wait().exit_code == 0


def test_a_command_sees_the_end_of_its_stdin_whatever_becomes_of_its_output(box: Sandbox, module_state: Path) -> None:
    """What is held for the next daemon holds no pipe open."""
    script = "touch begun; exec >&- 2>&-; wc -c > count"
    with box.start(script, stdin=True) as process:
        assert wait_until(lambda: box.filesystem.exists("begun"))
        process.stdin.write(b"x" * 100_000)
        assert process.stdout.read() == process.stderr.read() == b""
        _kill(module_state)
        process.stdin.write(b"x" * 100_000)
        process.stdin.close()
        assert process.wait().exit_code == 0
    assert box.filesystem.read_text("count") == "200000\n"


def test_a_command_outlives_connections_that_end_before_it_is_taken_up(
    box: Sandbox, module_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon answers, and nobody hears it: the caller asks again, and gets the command with all of its bytes."""
    send, receive, lost = Connection.send, Connection.receive, list[Connection]()

    def noted(connection: Connection, kind: Kind, channel: int, body: bytes = b"", **options: Any) -> None:
        if b'"exec.attach"' in body and len(lost) < 2:
            lost.append(connection)
        send(connection, kind, channel, body, **options)

    def unheard(connection: Connection) -> Frame | None:
        if connection not in lost:
            return receive(connection)
        assert select.select([connection.detach()], [], [], 60)[0]
        connection.close()
        raise ConnectionResetError("ended by the test")

    with box.start(["python3", "-c", _PRINTS, "0"]) as process:
        assert process.stdout.read(1) == b"x"
        assert wait_until(lambda: box.filesystem.exists("half0"), seconds=60)
        _kill(module_state)
        monkeypatch.setattr(Connection, "send", noted)
        monkeypatch.setattr(Connection, "receive", unheard)
        box.filesystem.write("go", "")
        assert b"x" + b"".join(iter(process.stdout.read, b"")) == _OUT.encode()
        assert b"".join(iter(process.stderr.read, b"")) == _ERR.encode()
        assert process.wait().exit_code == 0
    assert len(lost) == 2


def test_its_time_goes_on(box: Sandbox, module_state: Path) -> None:
    script, seconds = f"head -c {_FILLS} /dev/zero; touch half; sleep 600", 2
    with ThreadPoolExecutor(1) as threads:
        command = threads.submit(box.exec, script, timeout_seconds=seconds)
        while not box.filesystem.exists("half"):
            if command.done():  # its time was over before: with more
                seconds *= 2
                command = threads.submit(box.exec, script, timeout_seconds=seconds)
        _kill(module_state)
        assert command.result().limit is Limit.TIME
