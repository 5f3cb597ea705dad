"""Records on their way out: lines of an export, read in a thread as fast as they are taken."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from paddock.audit import (
    Choice,
    Cursor,
    Found,
    Heading,
    Stream,
    cursor_line,
    head_line,
    heading_line,
    record_line,
    record_prefix,
)
from paddock.model import StreamAudit

from ._gate import Entry

_POLL_SECONDS = 0.25
_AT_ONCE = 512


class AuditStream:
    """A ByteReader. Its own decision and outcome are in the log like everybody's."""

    def __init__(self, directory: Path, action: StreamAudit, choice: Choice, cursor: Cursor, entry: Entry) -> None:
        self._action, self._entry = action, entry
        self._stream = Stream(directory, choice, cursor)
        self._lines = self._first(Heading(filtered=not choice.everything, resumed=action.cursor is not None))
        self._rest = b""
        self._told = 0
        self._closed = False
        entry.defer()

    async def read(self, size: int = 65536) -> bytes:
        while not self._rest and not self._closed:
            self._rest = await asyncio.to_thread(self._more)
            if self._rest:
                break
            if not self._action.follow:
                await self.aclose()
                return b""
            await asyncio.sleep(_POLL_SECONDS)
            self._lines = self._new()
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    async def aclose(self) -> None:
        self._closed = True
        self._entry.done({"records": self._told})

    def _more(self) -> bytes:
        return b"".join(itertools.islice(self._lines, _AT_ONCE))

    def _first(self, heading: Heading) -> Iterator[bytes]:
        yield heading_line(heading)
        if self._action.last is not None:
            kept = deque(self._stream.in_order(), maxlen=self._action.last) if self._action.last else ()
            if not self._action.last:
                self._stream.skip()
            yield from self._told_of(iter(kept))
        else:
            yield from self._told_of(self._stream.records())
        if not self._action.follow:
            # After the records: what is vouched for was read. What is older than a cursor was sent before.
            yield from map(head_line, self._stream.heads())
            yield cursor_line(self._stream.cursor.text())

    def _new(self) -> Iterator[bytes]:
        return self._told_of(self._stream.in_order())

    def _told_of(self, records: Iterator[Found]) -> Iterator[bytes]:
        prefixes: dict[str, bytes] = {}
        for found in records:
            if found.segment not in prefixes:
                prefixes[found.segment] = record_prefix(found.segment)
            self._told += 1
            yield record_line(prefixes[found.segment], found.raw)
