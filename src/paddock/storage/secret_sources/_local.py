"""Values of this machine: a variable, a file, what a command prints. One newline at the end is not part of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
from collections.abc import Mapping, Sequence

LEAST_BYTES = 8
"""A shorter one could not be told from ordinary text where it comes back and has to be taken out."""
MOST_BYTES = 64 << 10


class Refused(Exception):
    """The words name the source and say why. Nothing of a value is in them."""

    def __init__(self, source: str, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.source, self.hint = source, hint


COMMAND_SECONDS = 20.0


def from_environment(environment: Mapping[str, str], variable: str) -> bytes:
    value = environment.get(variable)
    if value is None:
        raise Refused("env", f"there was no variable {variable} where the policy was set", f"export {variable}")
    return value.encode("utf-8", "surrogateescape")


def from_file(path: str) -> bytes:
    if not os.path.isabs(path):
        raise Refused("file", f"{path} is no absolute path")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Refused("file", f"{path} is no regular file")
            return _stripped(file.read(MOST_BYTES + 2))
    except OSError as error:
        raise Refused("file", f"{path} cannot be read: {error.strerror}") from None


async def from_command(
    argv: Sequence[str], environment: Mapping[str, str], *, seconds: float = COMMAND_SECONDS
) -> bytes:
    """Its output; what it says to stderr may hold the value, and is nobody's."""
    if not argv:
        raise Refused("command", "the command is empty")
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    )
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait((starting,))  # it runs already, and may have started others
        if starting.exception() is None:
            await _end(starting.result())
        raise
    except OSError as error:
        raise Refused("command", f"{argv[0]} cannot be started: {error.strerror}") from None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(seconds):
            data = await _bounded(process.stdout)
            code = await process.wait()
    except TimeoutError:
        raise Refused("command", f"{argv[0]} did not end within {seconds:g} s") from None
    finally:
        await _end(process)
    if code:
        raise Refused("command", f"{argv[0]} ended with {code}")
    return _stripped(data)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill it with all that it has started. asyncio says that it has ended once its pipe was read to the end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    assert process.stdout is not None
    while await process.stdout.read(MOST_BYTES):
        pass
    await process.wait()


async def _bounded(reader: asyncio.StreamReader) -> bytes:
    data = b""
    while len(data) <= MOST_BYTES + 1 and (more := await reader.read(MOST_BYTES)):
        data += more
    if len(data) > MOST_BYTES + 1:
        raise Refused("command", f"it prints more than {MOST_BYTES} bytes")
    return data


def _stripped(data: bytes) -> bytes:
    return data.removesuffix(b"\n").removesuffix(b"\r")
