"""Changes of files, as they happen."""

from __future__ import annotations

from paddock.model import FileChange, codec

from .handles import AsyncBlock, Handle


class AsyncChanges(AsyncBlock):
    """An iterator over changes of files, as they happen. `files.watch` returns it.

    A change of the kind `overflow` says that some are missing: list the files again.

    Example:
        ```python
        async with await sandbox.files.watch(".") as changes:
            await sandbox.files.write("new.txt", "hello")
            async for change in changes:
                print(change.kind, change.path)
                break
        ```
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._ready: list[FileChange] = []

    async def aclose(self) -> None:
        """End the watch.

        Example:
            ```python
            changes = await sandbox.files.watch(".")
            await changes.aclose()
            ```
        """
        if self._handle.end():
            await self._handle.call("close", cancels=False)

    def __aiter__(self) -> AsyncChanges:
        return self

    async def __anext__(self) -> FileChange:
        if not self._ready:
            changes = codec.decode(await self._handle.call("next"), tuple[FileChange, ...])
            self._ready.extend(reversed(changes))
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.pop()
