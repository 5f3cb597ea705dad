"""Reads every segment and checks every link. What it cannot see: see `docs/audit.md`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from paddock.model import AuditReport

from ._log import SUFFIX
from ._record import GENESIS, Broken, unseal


class _Link(msgspec.Struct, frozen=True):
    """`segment` line `line` vouches for record `seq` of `target`."""

    segment: str
    line: int
    target: str
    seq: int
    digest: str


class _Segment:
    """One segment while it is read; kept open in mind, since its writer may append meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        self.digests = bytearray()  # 32 bytes for each record
        self.links: list[_Link] = []
        self.head: str = GENESIS
        self.torn = False
        self._offset = 0

    @property
    def records(self) -> int:
        return len(self.digests) // 32

    def read_on(self) -> None:
        """Raises Broken with line and cause."""
        self.torn = False
        with self.path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    self.torn = True
                    return
                self._accept(line)
                self._offset += len(line)

    def _accept(self, line: bytes) -> None:
        number = self.records + 1
        try:
            opened = unseal(line)
        except Broken as error:
            raise Broken(f"segment {self.name}, line {number}: {error}") from None
        if opened.seq != number - 1:
            raise Broken(f"segment {self.name}, line {number}: it is record {opened.seq}, not {number - 1}")
        if opened.prev != self.head:
            raise Broken(f"segment {self.name}, line {number}: it does not follow the record before it")
        if opened.fields.get("action") == "audit.open":
            self.links += _links(self.name, number, opened.fields)
        self.head = opened.own
        self.digests += bytes.fromhex(opened.own)

    def holds(self, link: _Link) -> bool:
        at = link.seq * 32
        return self.digests[at : at + 32].hex() == link.digest


def verify(directory: Path) -> AuditReport:
    """Walks the whole log. Never raises for what a log may hold.

    A torn last line is `ok` and told in `problem`: a dying machine leaves it, and its effect never began.
    """
    segments: dict[str, _Segment] = {}
    try:
        for path in sorted(directory.glob(f"*{SUFFIX}")):
            segments[path.name] = segment = _Segment(path)
            segment.read_on()
        for segment in segments.values():
            for link in segment.links:
                _check(link, segments)
    except Broken as error:
        return _report(segments, problem=str(error), ok=False)
    except OSError as error:
        return _report(segments, problem=f"{error.filename}: {error.strerror}", ok=False)
    torn = [s for s in segments.values() if s.torn]
    problem = f"segment {torn[0].name}: the last line is torn; its writer died in it" if torn else None
    return _report(segments, problem=problem, ok=True)


def _check(link: _Link, segments: dict[str, _Segment]) -> None:
    where = f"segment {link.segment}, line {link.line}"
    target = segments.get(link.target)
    if target is None:
        raise Broken(f"{where}: it vouches for segment {link.target}, which is gone")
    if link.seq >= target.records:
        target.read_on()  # written after it was read here, before the link was
    if link.seq >= target.records:
        raise Broken(
            f"segment {link.target}, line {target.records + 1}: {where} vouches for more records: the tail is gone"
        )
    if not target.holds(link):
        raise Broken(f"segment {link.target}, line {link.seq + 1}: not the record that {where} vouches for")


def _links(segment: str, line: int, fields: dict[str, Any]) -> list[_Link]:
    links: list[_Link] = []
    try:
        for target, (seq, digest) in fields["detail"]["heads"].items():
            if type(seq) is not int or seq < 0 or type(digest) is not str:
                raise TypeError("a head is a number and a digest")
            links.append(_Link(segment, line, target, seq, digest))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Broken(f"segment {segment}, line {line}: its links cannot be read: {error}") from None
    return links


def _report(segments: dict[str, _Segment], *, problem: str | None, ok: bool) -> AuditReport:
    heads = hashlib.sha256()
    for name in sorted(segments):
        heads.update(f"{name} {segments[name].head}\n".encode("utf-8", "surrogateescape"))
    return AuditReport(
        ok=ok,
        segments=len(segments),
        records=sum(s.records for s in segments.values()),
        head=heads.hexdigest(),
        problem=problem,
    )
