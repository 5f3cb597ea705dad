"""Runs a command of the caller's for its output, or our own code for its failure, with limits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from paddock.linux.python import SOURCE

_ATTEMPT_SECONDS = 20


class CommandFailed(Exception):
    """A reason why a command gave no output. It holds nothing of the output."""


async def output(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    seconds: float,
    most_bytes: int,
    input: bytes = b"",
) -> bytes:
    """Run a command and return its stdout.

    Discard its stderr, which may contain secrets. Raises CommandFailed.

    It starts in /, where no workspace can mislead it. At the end paddock kills all processes that it has started.
    """
    if not argv:
        raise CommandFailed("the command is empty")
    starting = asyncio.ensure_future(_start(argv, environment))
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait((starting,))  # it runs already, and may have started others
        if starting.exception() is None:
            await _end(starting.result())
        raise
    except OSError as error:
        raise CommandFailed(f"{argv[0]} cannot be started: {error.strerror}") from None
    try:
        async with asyncio.timeout(seconds):
            data = await _exchange(process, input, most_bytes)
            code = await process.wait()
    except TimeoutError:
        raise CommandFailed(f"{argv[0]} did not end within {seconds:g} s") from None
    finally:
        await _end(process)
    if code:
        raise CommandFailed(f"{argv[0]} ended with {code}")
    return data


async def _start(argv: Sequence[str], environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        cwd="/",
        env=environment,
        start_new_session=True,
    )


async def _exchange(process: asyncio.subprocess.Process, input: bytes, most_bytes: int) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(ConnectionError):  # it doesn't read its input
        process.stdin.write(input)
        await process.stdin.drain()
    process.stdin.close()
    data = b""
    while len(data) <= most_bytes + 1 and (more := await process.stdout.read(1 << 16)):
        data += more
    if len(data) > most_bytes + 1:  # a newline at the end is one more
        raise CommandFailed(f"it prints more than {most_bytes} bytes")
    return data


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill a process with all that it has started. asyncio notices its end only after this reads its pipe to
    the end.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    assert process.stdout is not None
    while await process.stdout.read(1 << 16):
        pass
    await process.wait()


def attempt(code: str, *arguments: str) -> str | None:
    """Run `code` in another process, which has the modules of paddock and `sys`, and `arguments` from sys.argv[2] on.

    Return None, or the last line of what it says as it fails.
    """
    code = f"import sys\nsys.path.insert(0, sys.argv[1])\n{code}"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code, SOURCE, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_ATTEMPT_SECONDS,
            env={},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr.strip().splitlines() or ["it died"])[-1] if done.returncode else None
