"""A command whose lines a caller sees as it prints them."""

from __future__ import annotations

from paddock.client._blocking import atogether
from paddock.client._capture import Capture
from paddock.model import ExecResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from paddock.model.streams import ByteReader, ExecHandle

_CHUNK_BYTES = 1 << 16


async def watched(
    handle: ExecHandle,
    data: bytes | None,
    on_stdout: Callable[[str], object] | None,
    on_stderr: Callable[[str], object] | None,
    *,
    capture_bytes: int,
) -> ExecResult:
    """Feed a command, tell the callbacks its lines, and return its result. An exception of a callback kills it."""
    out, err = Capture(capture_bytes, on_stdout), Capture(capture_bytes, on_stderr)

    async def feed() -> None:
        if handle.stdin is not None:
            try:
                await handle.stdin.write(data or b"")
                await handle.stdin.aclose()
            except BrokenPipeError:  # it reads no more
                pass

    async def drain(source: ByteReader | None, capture: Capture) -> None:
        while source is not None and (chunk := await source.read(_CHUNK_BYTES)):
            capture.feed(chunk)
        capture.end()

    try:
        await atogether(handle.kill, feed, lambda: drain(handle.stdout, out), lambda: drain(handle.stderr, err))
        status = await handle.wait()
    finally:
        await handle.aclose()
    return ExecResult(id=handle.id, status=status, out=out.output(), err=err.output())
