"""A command whose lines a caller sees as it prints them."""

from __future__ import annotations

from paddock.client._blocking import atogether
from paddock.client._capture import Capture
from paddock.errors import ProgramNotExecutableError, ProgramNotFoundError
from paddock.model import ExecId, ExecResult, ExitStatus

from .process import fed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from paddock.model import StartExec

    from .process import AsyncReader
    from .transport import AsyncTransport

_CHUNK_BYTES = 1 << 16


async def watched(
    transport: AsyncTransport,
    action: StartExec,
    data: bytes | None,
    on_stdout: Callable[[str], object] | None,
    on_stderr: Callable[[str], object] | None,
    *,
    capture_bytes: int,
) -> ExecResult:
    """Start a command, feed it, tell the callbacks its lines, and return its result.

    An exception of a callback kills it. A program that isn't there is exit code 127, as of `exec.run`.
    """
    out, err = Capture(capture_bytes, on_stdout), Capture(capture_bytes, on_stderr)
    try:
        process = await transport.perform(action)
    except (ProgramNotFoundError, ProgramNotExecutableError) as error:
        err.feed(error.message.encode() + b"\n")
        status = ExitStatus(code=127 if isinstance(error, ProgramNotFoundError) else 126)
        return ExecResult(id=ExecId(action.id or ""), status=status, out=out.output(), err=err.output())

    async def feed() -> None:
        if data is not None:
            await fed(process.stdin, data)

    async def drain(source: AsyncReader, capture: Capture) -> None:
        while chunk := await source.read(_CHUNK_BYTES):
            capture.feed(chunk)
        capture.end()

    try:
        await atogether(process.kill, feed, lambda: drain(process.stdout, out), lambda: drain(process.stderr, err))
        status = await process.wait()
    finally:
        await process.aclose()
    return ExecResult(id=ExecId(process.id), status=status, out=out.output(), err=err.output())
