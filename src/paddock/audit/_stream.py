"""The log as a stream of lines, in constant memory, from a cursor on and as it grows."""

from __future__ import annotations

import base64
import binascii
import heapq
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from paddock.errors import InvalidArgumentError

from ._heads import peek_head
from ._log import HEADS
from ._parts import chains, lines, size
from ._record import Broken, Record, read_record

_MOST_AWAITED = 65_536
"""Most decisions of a segment whose outcomes a stream waits for."""


class Position(msgspec.Struct, array_like=True):
    """A position in a segment: the bytes before it, and the decisions shown so far without an outcome."""

    offset: int = 0
    awaited: dict[int, None] = {}


class Cursor(msgspec.Struct):
    """Up to where a reader has come. Opaque to others."""

    segments: dict[str, Position] = {}
    heads: int = 0

    def text(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode("ascii")


def read_cursor(text: str) -> Cursor:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text), type=Cursor)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise InvalidArgumentError(
            f"{text[:64]!r} is not a cursor of an audit log", hint="start without one", field="cursor"
        ) from None


class RecordFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which records. `sandboxes` are the names of one, `tag` an action, its beginning, or decision, outcome, event."""

    sandboxes: tuple[str, ...] = ()
    tag: str | None = None
    since: float | None = None

    @property
    def everything(self) -> bool:
        return not self.sandboxes and self.tag is None and self.since is None

    def fits(self, record: Record, awaited: dict[int, None]) -> bool:
        if record.kind == "outcome" and record.of in awaited:
            del awaited[record.of]
            return self.tag != "decision"
        if self.since is not None and record.time < self.since * 1e9:
            return False
        if self.sandboxes and record.sandbox not in self.sandboxes:
            return False
        return self.tag is None or self.tag in (record.kind, record.action) or record.action.startswith(f"{self.tag}.")


class SegmentLine(msgspec.Struct):
    """A line of a segment. `raw` includes the newline. `record` is None if it isn't a record."""

    segment: str
    raw: bytes
    record: Record | None


class Stream:
    def __init__(self, directory: Path, choice: RecordFilter, cursor: Cursor) -> None:
        self._directory, self._choice, self.cursor = directory, choice, cursor
        self._vouched = False

    def skip(self) -> None:
        """Skip all present records."""
        for name in chains(self._directory):
            self.cursor.segments.setdefault(name, Position()).offset = size(self._directory, name)
        try:
            self.cursor.heads = size(self._directory, HEADS)
        except FileNotFoundError:
            self.cursor.heads = 0

    def records(self) -> Iterator[SegmentLine]:
        """Yield new records, one segment after the other.

        Records that they vouch for come too, even if the writer added them meanwhile.
        """
        self._vouched = True
        while self._vouched:
            self._vouched = False
            for name, end in self._ends():
                yield from self._segment(name, end)

    def in_order(self) -> Iterator[SegmentLine]:
        """Yield new records in the order of their times."""
        segments = [self._segment(name, end) for name, end in self._ends()]
        yield from heapq.merge(*segments, key=lambda found: found.record.time if found.record else 0)

    def heads(self) -> Iterator[bytes]:
        """Yield the signed heads of the records read so far."""
        with suppress(FileNotFoundError):
            for after, line in lines(self._directory, HEADS, self.cursor.heads):
                if not line.endswith(b"\n") or not self._covers(line):
                    return
                self.cursor.heads = after
                yield line

    def _covers(self, line: bytes) -> bool:
        """Tell whether a head vouches for nothing that wasn't read."""
        try:
            marks = peek_head(line).heads
        except Broken:
            return True  # it is for `verify` to find
        read = self.cursor.segments
        return all(name in read and end <= read[name].offset for name, (_, _, end) in marks.items())

    def _ends(self) -> list[tuple[str, int]]:
        return [(name, size(self._directory, name)) for name in chains(self._directory)]

    def _segment(self, name: str, end: int) -> Iterator[SegmentLine]:
        at = self.cursor.segments.setdefault(name, Position())
        for after, raw in lines(self._directory, name, at.offset):
            if after > end or not raw.endswith(b"\n"):
                return
            at.offset = after
            record = read_record(raw)
            if record is None:  # whole or not, an export of everything holds it
                if self._choice.everything:
                    yield SegmentLine(name, raw, None)
                continue
            self._vouched = self._vouched or record.action == "audit.open"
            if self._choice.fits(record, at.awaited):
                self._await(record, at)
                yield SegmentLine(name, raw, record)

    def _await(self, record: Record, at: Position) -> None:
        if self._choice.everything or record.kind != "decision" or record.allowed is False:
            return
        at.awaited[record.seq] = None
        if len(at.awaited) > _MOST_AWAITED:
            del at.awaited[next(iter(at.awaited))]
