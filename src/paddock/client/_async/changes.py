"""Changes of files, as they happen."""

from __future__ import annotations

from paddock.model import FileChange
from paddock.model.streams import ChangeStream

from .process import AsyncBlock


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

    def __init__(self, handle: ChangeStream) -> None:
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
        await self._handle.aclose()

    def __aiter__(self) -> AsyncChanges:
        return self

    async def __anext__(self) -> FileChange:
        if not self._ready:
            self._ready.extend(reversed(await self._handle.next()))
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.pop()
