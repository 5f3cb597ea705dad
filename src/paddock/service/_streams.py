"""Bytes in a caller's hands: when they end, the outcome is recorded with their number and digest, never with them."""

from __future__ import annotations

import hashlib

from paddock.errors import SandboxDied
from paddock.model import ByteReader, ByteStream, ByteWriter, ChangeStream, FileChange, FileInfo

from ._gate import Entry
from ._live import Live
from ._store import Row


class _Recorded:
    def __init__(self, row: Row, live: Live, entry: Entry) -> None:
        self._row, self._live, self._entry = row, live, entry
        entry.defer()

    async def _broken(self, error: BaseException) -> BaseException:
        """Records the failure; the error to raise instead."""
        if isinstance(error, SandboxDied):
            error = await self._live.dead(self._row)
        self._entry.failed(error)
        return error


class RecordedReader(_Recorded):
    def __init__(self, inner: ByteReader, row: Row, live: Live, entry: Entry) -> None:
        super().__init__(row, live, entry)
        self._inner = inner
        self._digest, self._total, self._whole = hashlib.sha256(), 0, False

    async def read(self, size: int = 65536) -> bytes:
        try:
            data = await self._inner.read(size)
        except Exception as error:
            raise await self._broken(error) from None
        if data:
            self._digest.update(data)
            self._total += len(data)
        elif size:
            self._whole = True
            self._finish()
        return data

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._finish()

    def _finish(self) -> None:
        content = {"sha256": self._digest.hexdigest(), "length": self._total}
        self._entry.done({"content": content, "whole": self._whole})


class RecordedWriter(_Recorded):
    def __init__(self, inner: ByteWriter, row: Row, live: Live, entry: Entry) -> None:
        super().__init__(row, live, entry)
        self._inner = inner
        self._digest, self._total = hashlib.sha256(), 0

    async def write(self, data: bytes) -> None:
        try:
            await self._live.rouse(self._row)
            await self._inner.write(data)
        except Exception as error:
            raise await self._broken(error) from None
        self._digest.update(data)
        self._total += len(data)

    async def aclose(self) -> FileInfo | None:
        try:
            await self._live.rouse(self._row)
            info = await self._inner.aclose()
        except Exception as error:
            raise await self._broken(error) from None
        self._entry.done({"content": {"sha256": self._digest.hexdigest(), "length": self._total}})
        return info

    async def abort(self) -> None:
        try:
            await self._inner.abort()
        finally:
            self._entry.done({"aborted": True})


class RecordedStream(_Recorded):
    """Both ways. What goes through a port is not digested: it has no end that would mean anything."""

    def __init__(self, inner: ByteStream, row: Row, live: Live, entry: Entry) -> None:
        super().__init__(row, live, entry)
        self._inner = inner
        self._received = self._sent = 0

    async def read(self, size: int = 65536) -> bytes:
        data = await self._inner.read(size)
        self._received += len(data)
        return data

    async def write(self, data: bytes) -> None:
        await self._live.rouse(self._row)
        await self._inner.write(data)
        self._sent += len(data)

    async def write_eof(self) -> None:
        await self._live.rouse(self._row)
        await self._inner.write_eof()

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._entry.done({"received_bytes": self._received, "sent_bytes": self._sent})

    async def abort(self) -> None:
        try:
            await self._inner.abort()
        finally:
            self._entry.done({"received_bytes": self._received, "sent_bytes": self._sent, "aborted": True})


class RecordedChanges(_Recorded):
    def __init__(self, inner: ChangeStream, row: Row, live: Live, entry: Entry) -> None:
        super().__init__(row, live, entry)
        self._inner = inner
        self._seen = 0

    async def next(self) -> tuple[FileChange, ...]:
        try:
            changes = await self._inner.next()
        except Exception as error:
            raise await self._broken(error) from None
        self._seen += len(changes)
        if not changes:
            self._entry.done({"changes": self._seen})
        return changes

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._entry.done({"changes": self._seen})
