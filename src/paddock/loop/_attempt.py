"""What was tried, how it went, and which is best."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ._budget import Stop, Tokens
from ._verdict import Verdict

NOT_NEEDED = "not needed: another had passed"


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """What it took to come to a change. `usd=None`: nobody knows."""

    steps: int = 0
    tokens: Tokens = Tokens()
    usd: float | None = None
    stop: Stop | None = None
    note: str | None = None


class DiffSize(msgspec.Struct, frozen=True, kw_only=True):
    files: int = 0
    added: int = 0
    removed: int = 0

    @classmethod
    def of(cls, diff: bytes) -> DiffSize:
        """Counted in the text: a hunk's header says how many of its lines are content."""
        files = added = removed = left_old = left_new = 0
        for line in diff.split(b"\n"):
            if left_old > 0 or left_new > 0:
                kind = line[:1]
                added += kind == b"+"
                removed += kind == b"-"
                left_old -= kind in (b"-", b" ", b"")
                left_new -= kind in (b"+", b" ", b"")
            elif line.startswith(b"diff --git "):
                files += 1
            elif line.startswith(b"@@ -"):
                left_old, left_new = _lengths(line)
        return cls(files=files, added=added, removed=removed)

    @property
    def lines(self) -> int:
        return self.added + self.removed


def _lengths(header: bytes) -> tuple[int, int]:
    """`@@ -1,3 +1,4 @@`."""
    try:
        old, new = header.split(b" ", 3)[1:3]
        lengths = [int(part.partition(b",")[2] or b"1") for part in (old, new)]
    except ValueError:
        return 0, 0
    return lengths[0], lengths[1]


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """`failure` says why there is no verdict. `applied` is what put the patch in place."""

    name: str
    verdict: Verdict | None = None
    failure: str | None = None
    diff: bytes = b""
    size: DiffSize = DiffSize()
    applied: str | None = None
    effort: Effort = Effort()
    seconds: float = 0.0
    """From its fork to its end, the tests included."""

    @property
    def passed(self) -> bool:
        return self.verdict is not None and self.verdict.passed

    @property
    def outcome(self) -> str:
        return (self.failure or "") if self.verdict is None else str(self.verdict)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All attempts, as they were given. `best` is None where none passes; `nearest` is what came nearest."""

    attempts: tuple[Attempt, ...]
    seconds: float = 0.0

    @property
    def best(self) -> Attempt | None:
        nearest = self.nearest
        return nearest if nearest is not None and nearest.passed else None

    @property
    def nearest(self) -> Attempt | None:
        """By tests passed, then the smaller change, then the order in which they were given."""
        judged = [attempt for attempt in self.attempts if attempt.verdict is not None]
        return min(judged, key=_rank) if judged else None

    @property
    def why(self) -> str:
        passed = [attempt for attempt in self.attempts if attempt.passed]
        best = self.best
        if best is None:
            nearest = self.nearest
            near = f"; {nearest.name} came nearest: {nearest.outcome}" if nearest is not None else ""
            return f"none of {len(self.attempts)} passes{near}"
        if len(passed) == 1:
            return f"{best.name} is the only one of {len(self.attempts)} that passes"
        return f"{best.name}: {len(passed)} of {len(self.attempts)} pass; {_advantage(best, passed)}"


def _rank(attempt: Attempt) -> tuple[bool, float, int, int]:
    assert attempt.verdict is not None
    counts = attempt.verdict.counts
    return not attempt.passed, -attempt.verdict.score, -(counts.passed if counts else 0), attempt.size.lines


def _advantage(best: Attempt, passed: Sequence[Attempt]) -> str:
    ranks = sorted(_rank(attempt) for attempt in passed)
    if ranks[0][2] != ranks[1][2]:
        return "it passes the most tests"
    if ranks[0][3] != ranks[1][3]:
        return f"of those with the most tests its change is the smallest ({best.size.lines} lines)"
    return "of equals it was the first"
