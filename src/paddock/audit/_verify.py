"""The verifier of a whole log or of an export: it checks every link and every signature.

`docs/audit.md` says which changes it can't detect.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec

from paddock.model import AuditFault, AuditReport

from ._export import ExportHeader, HeadLine, RecordLine, parse_line
from ._heads import line_digest, unseal_head
from ._log import HEADS
from ._parts import SUFFIX, chains, lines
from ._record import GENESIS, Broken, link
from ._signing import key_id


class Faulty(Exception):
    """The first link that does not hold."""

    def __init__(self, segment: str, line: int, cause: str, *, of_export: bool = False) -> None:
        place = "" if of_export or segment == HEADS else "segment "
        super().__init__(f"{place}{segment}, line {line}: {cause}")
        self.fault = AuditFault(segment=segment, line=line, seq=line - 1, cause=cause)


class Link(msgspec.Struct, frozen=True):
    """`segment` line `line` vouches for record `seq` of `target`."""

    segment: str
    line: int
    target: str
    seq: int
    digest: str


class Chain:
    """The records of a segment. `part`: the export leaves some of them out."""

    def __init__(self, name: str, *, part: bool = False) -> None:
        self.name, self._part = name, part
        self.links: list[Link] = []
        self.signed_links: list[tuple[int, int, str]] = []
        """Line, and which head (number, digest) its writer has seen."""
        self.head: str = GENESIS
        self.torn = False
        self.gaps = self.records = 0
        self.begin, self.before = 0, GENESIS
        """In a whole chain: the number of its first record, and the digest of the record before it.

        That digest belongs to a removed record, unless the number is 0.
        """
        self._runs: list[tuple[int, bytearray]] = []
        """The runs of records without a gap: the number of the first, and 32 bytes for each."""

    @property
    def end(self) -> int:
        """Return the number after the last one."""
        if not self._runs:
            return self.begin
        first, digests = self._runs[-1]
        return first + len(digests) // 32

    def vouched(self, marks: list[int]) -> int:
        """Count the records that the signed ones vouch for: themselves, and all before them up to a gap.

        Before a gap, only the missing records could prove the others.
        """
        total = 0
        for first, digests in self._runs:
            after = first + len(digests) // 32
            total += max((mark + 1 - first for mark in marks if first <= mark < after), default=0)
        return total

    def accept(self, line: bytes) -> None:
        """Faulty with line and cause."""
        try:
            seq, prev, own = link(line)
            record: dict[str, Any] = json.loads(line)
        except (Broken, ValueError, RecursionError) as error:
            raise Faulty(self.name, self.end + 1, str(error)) from None
        if not self._runs and not self._part and seq > 0:  # whether the rest may be gone, the signed heads tell
            self.begin, self.before, self.head = seq, prev, prev
        end = self.end
        if seq != end and not self._part:
            raise Faulty(self.name, end + 1, f"it is record {seq}, not {end}")
        if seq < end:
            raise Faulty(self.name, seq + 1, f"it comes after record {end - 1}")
        if seq == end and prev != self.head:
            raise Faulty(self.name, seq + 1, "it does not follow the record before it")
        if record.get("action") == "audit.open":
            self._note(seq + 1, record.get("detail"))
        if seq > end:
            self.gaps += 1
        if seq > end or not self._runs:
            self._runs.append((seq, bytearray()))
        self.head = own
        self._runs[-1][1].extend(bytes.fromhex(own))
        self.records += 1

    def digest(self, seq: int) -> str | None:
        """Return the digest of a record, or None if it isn't there."""
        index = bisect_right(self._runs, seq, key=lambda run: run[0]) - 1
        if index < 0:
            return None
        first, digests = self._runs[index]
        at = (seq - first) * 32
        return digests[at : at + 32].hex() or None

    def _note(self, line: int, detail: object) -> None:
        try:
            seen = msgspec.convert(detail, _Seen)
        except msgspec.ValidationError as error:
            raise Faulty(self.name, line, f"its links cannot be read: {error}") from None
        self.links += [Link(self.name, line, target, *head) for target, head in seen.heads.items()]
        if seen.signed is not None:
            self.signed_links.append((line, *seen.signed))


class _Seen(msgspec.Struct):
    """The last records of other segments and the last signed head, as a writer found them when it opened its own."""

    heads: dict[str, tuple[Annotated[int, msgspec.Meta(ge=0)], str]]
    signed: tuple[Annotated[int, msgspec.Meta(ge=0)], str] | None = None


class _Reading:
    """The records read so far, and how far the signed heads vouch for them."""

    def __init__(self, trusted: Sequence[bytes]) -> None:
        self._trusted = frozenset(trusted)
        self.chains: dict[str, Chain] = {}
        self.part = False
        self.gaps = 0
        self.keys: list[str] = []
        self.signed_at: float | None = None
        self.heads: list[tuple[int, str]] = []
        """Number and digest of each signed head."""
        self._marks: dict[str, list[int]] = {}
        self._removed: set[tuple[str, int, str]] = set()
        """The last records that retention removed, as signed heads name them: chain, number and digest."""
        self._before_heads = -1, GENESIS
        """Number and digest of the head before the first of them, unless that is the first of all."""

    def read_on(self, chain: Chain) -> None:
        """Read the records that the writer has added to the chain since."""

    def find(self, name: str) -> Chain | None:
        return self.chains.get(name)

    def more_heads(self) -> Iterable[bytes]:
        """Return the heads that were not given before."""
        return ()

    def check(self) -> None:
        self._take_heads()
        self._check_begins()
        for chain in tuple(self.chains.values()):
            for one in chain.links:
                self._check(one)
            for line, n, digest in chain.signed_links:
                self._check_signed(chain, line, n, digest)
        if self._trusted and not self.heads:
            raise Faulty(HEADS, 1, "nothing was signed with the key that was given")

    def _check_begins(self) -> None:
        """Tell a beginning that retention removed from a fault."""
        before = [(chain.name, (chain.begin - 1, chain.before)) for chain in self.chains.values()]
        for name, (last, digest) in (*before, (HEADS, self._before_heads)):
            if last >= 0 and (name, last, digest) not in self._removed:
                cause = f"it is record {last + 1}, not 0: the records before it are gone, and no signed head says why"
                raise Faulty(name, 1, cause)

    def _take_heads(self) -> None:
        for raw in self.more_heads():
            self._head(len(self.heads) + 1, raw)

    def _head(self, line: int, raw: bytes) -> None:
        try:
            head, public = unseal_head(raw)
        except Broken as error:
            raise Faulty(HEADS, line, str(error)) from None
        if not self.heads and not self.part:  # `_check_begins` looks at that
            self._before_heads = head.n - 1, head.prev
        number, digest = self.heads[-1] if self.heads else self._before_heads
        follows = (head.n, head.prev) == (number + 1, digest)
        if self.part and not follows:
            follows = head.n > number
            self.gaps += 1
        if not follows:
            raise Faulty(HEADS, line, "it does not follow the head before it")
        if self._trusted and public not in self._trusted:
            raise Faulty(HEADS, line, f"it was signed with another key, {key_id(public)}")
        self._removed.update((name, seq, digest) for name, ends in head.removed.items() for seq, digest in ends)
        for target, (seq, digest, _) in head.heads.items():
            self._check(Link(HEADS, line, target, seq, digest))
            self._marks.setdefault(target, []).append(seq)
        if (id := key_id(public)) not in self.keys:
            self.keys.append(id)
        self.signed_at = head.time / 1e9
        self.heads.append((head.n, line_digest(raw)))

    def _check(self, link: Link) -> None:
        where = f"signed head {link.line - 1}" if link.segment == HEADS else f"segment {link.segment}, line {link.line}"
        target = self.find(link.target)
        if target is None:
            if self.part:
                return
            raise Faulty(link.segment, link.line, f"it vouches for segment {link.target}, which is gone")
        if link.seq < target.begin:
            return  # `_check_begins` looks at that
        if link.seq >= target.end:
            self.read_on(target)  # written after it was read here, before the link was
        found = target.digest(link.seq)
        if found is None:
            if self.part:
                return
            cause = f"{where} vouches for more records: the tail is gone"
            raise Faulty(target.name, target.end + 1, cause)
        if found != link.digest:
            raise Faulty(target.name, link.seq + 1, f"not the record that {where} vouches for")

    def _check_signed(self, chain: Chain, line: int, n: int, digest: str) -> None:
        if self.part:
            return
        at = n - self._before_heads[0] - 1
        if at < 0:
            return
        if at >= len(self.heads):
            self._take_heads()
        if at >= len(self.heads):
            raise Faulty(chain.name, line, f"it has seen signed head {n}, which is gone")
        if self.heads[at] != (n, digest):
            raise Faulty(chain.name, line, f"signed head {n} is not the one that it has seen")

    def report(self, error: Faulty | None = None, unread: str | None = None) -> AuditReport:
        heads = hashlib.sha256()
        for name in sorted(self.chains):
            heads.update(f"{name} {self.chains[name].head}\n".encode("utf-8", "surrogateescape"))
        torn = next((chain.name for chain in self.chains.values() if chain.torn), None)
        problem = str(error) if error is not None else unread
        if problem is None and torn is not None:
            problem = f"segment {torn}: the last line is torn; its writer died in it"
        fault: AuditFault | None = None if error is None else error.fault
        return AuditReport(
            ok=error is None and unread is None,
            segments=len(self.chains),
            records=sum(chain.records for chain in self.chains.values()),
            head=heads.hexdigest(),
            problem=problem,
            fault=fault,
            signed=sum(chain.vouched(self._marks.get(chain.name, [])) for chain in self.chains.values()),
            heads=len(self.heads),
            signed_at=self.signed_at,
            keys=tuple(self.keys),
            part=self.part,
            removed={chain.name: chain.begin for chain in self.chains.values() if chain.begin},
            gaps=self.gaps + sum(chain.gaps for chain in self.chains.values()),
        )


class _Directory(_Reading):
    """Writers may append meanwhile."""

    def __init__(self, directory: Path, trusted: Sequence[bytes]) -> None:
        super().__init__(trusted)
        self._directory = directory
        self._offsets: dict[str, int] = {}

    def read(self) -> None:
        for name in chains(self._directory):
            self.chains[name] = chain = Chain(name)
            self.read_on(chain)
        self.check()

    def read_on(self, chain: Chain) -> None:
        chain.torn = False
        for after, line in lines(self._directory, chain.name, self._offsets.get(chain.name, 0)):
            if not line.endswith(b"\n"):
                chain.torn = True
                break
            chain.accept(line)
            self._offsets[chain.name] = after

    def find(self, name: str) -> Chain | None:
        """Find a chain, also one that began after this read the others."""
        if name not in self.chains and name.endswith(SUFFIX) and name in chains(self._directory):
            self.chains[name] = chain = Chain(name)
            self.read_on(chain)
        return self.chains.get(name)

    def more_heads(self) -> Iterator[bytes]:
        """Yield new heads. A torn last one has vouched for nothing."""
        with suppress(FileNotFoundError):
            for after, line in lines(self._directory, HEADS, self._offsets.get(HEADS, 0)):
                if line.endswith(b"\n"):
                    self._offsets[HEADS] = after
                    yield line


class _Export(_Reading):
    """Lines of `paddock audit export`."""

    def __init__(self, path: Path, trusted: Sequence[bytes]) -> None:
        super().__init__(trusted)
        self._path = path
        self._heads: list[bytes] = []

    def more_heads(self) -> Iterable[bytes]:
        heads, self._heads = self._heads, []
        return heads

    def read(self) -> None:
        path = self._path
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                try:
                    line = parse_line(raw)
                except Broken as error:
                    raise Faulty(path.name, number, str(error), of_export=True) from None
                match line:
                    case ExportHeader():
                        self.part = self.part or line.filtered or (number == 1 and line.resumed)
                    case HeadLine():
                        self._heads.append(line.raw)
                    case RecordLine():
                        self._chain(line.segment).accept(line.raw)
                    case None:
                        if number == 1:
                            raise Faulty(path.name, 1, "not an export of an audit log", of_export=True)
        self.check()

    def _chain(self, name: str) -> Chain:
        return self.chains.setdefault(name, Chain(name, part=self.part))


def verify(path: Path, keys: Sequence[bytes] = ()) -> AuditReport:
    """Check a directory of segments, or a file of `paddock audit export`.

    It never raises, for any content.

    With `keys` (32 bytes each), every signed head must be by one of them, and there must be at least one. A torn last
    line is `ok` and named in `problem`: a dying machine leaves it, and its effect never began.
    """
    reading = (_Export if path.is_file() else _Directory)(path, keys)
    try:
        reading.read()
    except Faulty as error:
        return reading.report(error)
    except OSError as error:
        return reading.report(unread=f"{error.filename}: {error.strerror}")
    return reading.report()
