"""A segment while it is checked."""

from __future__ import annotations

from typing import Any

import msgspec

from paddock.model import AuditFault

from ._record import GENESIS, Broken, unseal


class Faulty(Exception):
    """The first link that does not hold."""

    def __init__(self, segment: str, line: int, cause: str, *, seq: int | None = None, place: str = "segment ") -> None:
        super().__init__(f"{place}{segment}, line {line}: {cause}")
        self.fault = AuditFault(segment=segment, line=line, seq=line - 1 if seq is None else seq, cause=cause)


class Link(msgspec.Struct, frozen=True):
    """`segment` line `line` vouches for record `seq` of `target`."""

    segment: str
    line: int
    target: str
    seq: int
    digest: str

    @property
    def where(self) -> str:
        return f"segment {self.segment}, line {self.line}"


class Chain:
    """Of all records of a segment, from the first that is there."""

    gaps = 0
    begin = 0
    """The number of that one, and the digest before it: of a record that is gone, unless it is 0."""
    before = GENESIS

    def __init__(self, name: str) -> None:
        self.name = name
        self.links: list[Link] = []
        self.signed_links: list[tuple[int, int, str]] = []
        """Line, and which head (number, digest) its writer has seen."""
        self.head: str = GENESIS
        self.torn = False
        self._digests = bytearray()  # 32 bytes for each record

    @property
    def records(self) -> int:
        return len(self._digests) // 32

    @property
    def end(self) -> int:
        """The number after the last one."""
        return self.begin + self.records

    def vouched(self, marks: list[int]) -> int:
        """How many records those signed ones vouch for: themselves, and all that their digests cover."""
        return max(0, max(marks, default=-1) + 1 - self.begin)

    def accept(self, line: bytes) -> None:
        """Faulty with line and cause."""
        number = self.end + 1
        try:
            opened = unseal(line)
        except Broken as error:
            raise Faulty(self.name, number, str(error)) from None
        if not self.records and opened.seq > 0:  # whether the rest may be gone, the signed heads tell
            self.begin, self.before, self.head = opened.seq, opened.prev, opened.prev
            number = self.end + 1
        if opened.seq != number - 1:
            raise Faulty(self.name, number, f"it is record {opened.seq}, not {number - 1}")
        if opened.prev != self.head:
            raise Faulty(self.name, number, "it does not follow the record before it")
        self._note(number, opened.fields)
        self.head = opened.own
        self._digests += bytes.fromhex(opened.own)

    def digest(self, seq: int) -> str | None:
        """None: it is not there."""
        at = (seq - self.begin) * 32
        return self._digests[at : at + 32].hex() or None

    def _note(self, line: int, fields: dict[str, Any]) -> None:
        if fields.get("action") != "audit.open":
            return
        try:
            for target, (seq, digest) in fields["detail"]["heads"].items():
                self.links.append(Link(self.name, line, target, *_head(seq, digest)))
            if (signed := fields["detail"].get("signed")) is not None:
                self.signed_links.append((line, *_head(*signed)))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Faulty(self.name, line, f"its links cannot be read: {error}") from None


class PartChain(Chain):
    """Of some records of a segment: each by itself, and with the one before where that is there."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._some: dict[int, bytes] = {}
        self._runs: list[tuple[int, int]] = []
        """Where records follow each other without a gap: the first, and how many."""
        self._last = -1

    @property
    def records(self) -> int:
        return len(self._some)

    @property
    def end(self) -> int:
        return self._last + 1

    def accept(self, line: bytes) -> None:
        try:
            opened = unseal(line)
        except Broken as error:
            raise Faulty(self.name, self._last + 2, str(error)) from None
        seq = opened.seq
        if seq <= self._last:
            raise Faulty(self.name, seq + 1, f"it comes after record {self._last}", seq=seq)
        if seq != self._last + 1:
            self.gaps += 1
            self._runs.append((seq, 0))
        elif opened.prev != self.head:
            raise Faulty(self.name, seq + 1, "it does not follow the record before it", seq=seq)
        self._note(seq + 1, opened.fields)
        first, length = self._runs.pop() if self._runs else (seq, 0)
        self._runs.append((first, length + 1))
        self.head, self._last = opened.own, seq
        self._some[seq] = bytes.fromhex(opened.own)

    def digest(self, seq: int) -> str | None:
        found = self._some.get(seq)
        return None if found is None else found.hex()

    def vouched(self, marks: list[int]) -> int:
        """Behind a gap nothing is: only who has what was left out could tell."""
        total = 0
        for first, length in self._runs:
            total += max((mark - first for mark in marks if first <= mark < first + length), default=-1) + 1
        return total


def _head(seq: object, digest: object) -> tuple[int, str]:
    if type(seq) is not int or seq < 0 or type(digest) is not str:
        raise TypeError("a head is a number and a digest")
    return seq, digest
