"""Changes of files, as they happen."""

from __future__ import annotations

from types import TracebackType

from paddock.model import FileChange
from paddock.model.streams import ChangeStream


class AsyncChanges:
    """Iterates over changes until the watch ends.

    A kind of `overflow` means that some are missing, so list the directory again.
    """

    def __init__(self, handle: ChangeStream) -> None:
        self._handle = handle
        self._ready: list[FileChange] = []

    async def aclose(self) -> None:
        await self._handle.aclose()

    def __aiter__(self) -> AsyncChanges:
        return self

    async def __anext__(self) -> FileChange:
        if not self._ready:
            self._ready.extend(reversed(await self._handle.next()))
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.pop()

    async def __aenter__(self) -> AsyncChanges:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
