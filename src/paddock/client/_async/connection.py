"""A connection to a port inside."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from paddock.model.streams import ByteStream

_CHUNK_BYTES = 1 << 16


class AsyncConnection:
    """Bytes both ways, to and from a program inside that listens on a port. `sandbox.dial` makes one."""

    def __init__(self, handle: ByteStream) -> None:
        self._handle = handle

    async def read(self, size: int = _CHUNK_BYTES) -> bytes:
        """Return at most `size` bytes as soon as any are there, or b"" at the end."""
        return await self._handle.read(size)

    async def write(self, data: str | bytes) -> None:
        """Write data, and wait until the other side has accepted all of it.

        Text becomes UTF-8. Raises BrokenPipeError if the other side has closed.
        """
        await self._handle.write(data.encode() if isinstance(data, str) else data)

    async def write_eof(self) -> None:
        """End this direction. The other one stays open."""
        await self._handle.write_eof()

    async def aclose(self) -> None:
        """Close both directions."""
        await self._handle.aclose()

    async def __aenter__(self) -> AsyncConnection:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
