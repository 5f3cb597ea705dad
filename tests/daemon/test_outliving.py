"""Commands in the foreground outlive the daemon that they were started with."""

from __future__ import annotations

import os
import random
import select
import signal
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from paddock import Sandbox
from paddock.client import default_transport, stop_daemon
from paddock.model import Limit
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


@pytest.fixture
def box(state_dir: Path) -> Generator[Sandbox]:
    with Sandbox.create(level="jail", ttl_seconds=300, transport=default_transport(state_dir)) as made:
        yield made


def _kill(state_dir: Path) -> None:
    pid = daemon_pid(state_dir)
    process = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        select.select([process], [], [])
    finally:
        os.close(process)


def _restart(state_dir: Path) -> None:
    assert stop_daemon(state_dir, ends_sessions=False)


def _streamed(box: Sandbox, number: int) -> tuple[str, str, int]:
    with box.start(["python3", "-c", _PRINTS, str(number)]) as process:
        out = b"".join(iter(process.stdout.read, b""))
        err = b"".join(iter(process.stderr.read, b""))
        return out.decode(), err.decode(), process.wait().exit_code


def _run(box: Sandbox, number: int) -> tuple[str, str, int]:
    done = box.exec(["python3", "-c", _PRINTS, str(number)])
    return done.stdout, done.stderr, done.exit_code


@pytest.mark.parametrize("end", [_kill, _restart])
def test_no_command_and_no_byte_is_lost_with_a_daemon(
    end: Callable[[Path], None], box: Sandbox, state_dir: Path
) -> None:
    count = 6
    with ThreadPoolExecutor(2 * count) as threads:
        commands = [threads.submit(_streamed if number % 2 else _run, box, number) for number in range(count)]
        for _ in range(2):
            assert wait_until(lambda: len(box.filesystem.list(".")) >= count, seconds=60)
            end(state_dir)
        box.filesystem.write("go", "")
        assert [command.result() for command in commands] == [(_OUT, _ERR, 0)] * count


def test_what_a_command_is_given_reaches_it_once(box: Sandbox, state_dir: Path) -> None:
    given = bytes(range(256)) * 20_000
    script = f"head -c {_FILLS} /dev/zero; touch half; while [ ! -e go ]; do sleep 0.05; done; cat"
    with ThreadPoolExecutor(1) as threads:
        command = threads.submit(box.exec, script, input=given, capture_bytes=3 * len(given))
        assert wait_until(lambda: box.filesystem.exists("half"))
        _kill(state_dir)
        box.filesystem.write("go", "")
        assert (command.result().out.head + command.result().out.tail)[_FILLS:] == given


@pytest.mark.parametrize("end", [_kill, _restart])
def test_what_is_written_to_commands_while_daemons_end_comes_back_whole(
    end: Callable[[Path], None], box: Sandbox, state_dir: Path
) -> None:
    count, size = 8, 6 << 20
    given = [random.Random(number).randbytes(size) for number in range(count)]
    read = [0] * count

    def write(stdin: Any, data: bytes) -> None:
        for at in range(0, size, 70_001):
            stdin.write(data[at : at + 70_001])
        stdin.close()

    def echo(number: int) -> tuple[bytes, int]:
        parts: list[bytes] = []
        with box.start(["cat"], stdin=True) as process:
            written = threads.submit(write, process.stdin, given[number])
            for part in iter(process.stdout.read, b""):
                parts.append(part)
                read[number] += len(part)
            written.result()
            return b"".join(parts), process.wait().exit_code

    with ThreadPoolExecutor(2 * count) as threads:
        commands = [threads.submit(echo, number) for number in range(count)]
        for share in (8, 4, 2):
            assert wait_until(lambda: min(read) > size // share, seconds=60)
            end(state_dir)
        assert [command.result() for command in commands] == [(data, 0) for data in given]


def test_a_command_sees_the_end_of_its_stdin_whatever_becomes_of_its_output(box: Sandbox, state_dir: Path) -> None:
    """What is held for the next daemon holds no pipe open."""
    script = "touch begun; exec >&- 2>&-; wc -c > count"
    with box.start(script, stdin=True) as process:
        assert wait_until(lambda: box.filesystem.exists("begun"))
        process.stdin.write(b"x" * 100_000)
        assert process.stdout.read() == process.stderr.read() == b""
        _kill(state_dir)
        process.stdin.write(b"x" * 100_000)
        process.stdin.close()
        assert process.wait().exit_code == 0
    assert box.filesystem.read_text("count") == "200000\n"


def test_its_time_goes_on(box: Sandbox, state_dir: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        command = threads.submit(box.exec, f"head -c {_FILLS} /dev/zero; touch half; sleep 600", timeout_seconds=2)
        assert wait_until(lambda: box.filesystem.exists("half"))
        _kill(state_dir)
        assert command.result().limit is Limit.TIME
