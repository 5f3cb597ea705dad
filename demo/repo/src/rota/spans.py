"""Half-open spans of minutes in a week, and sets of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

DAY = 24 * 60
WEEK = 7 * DAY


@dataclass(frozen=True, order=True)
class Span:
    """From `start` up to, and not including, `end`; minutes since Monday 00:00."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if self.end <= self.start:
            raise ValueError(f"a span ends after it starts: {self.start} to {self.end}")

    @property
    def minutes(self) -> int:
        return self.end - self.start

    def __contains__(self, moment: int) -> bool:
        return self.start <= moment < self.end


class SpanSet:
    """Moments as the shortest sorted list of spans: none overlap, none touch."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._spans = tuple(_merge(spans))

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __bool__(self) -> bool:
        return bool(self._spans)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpanSet) and self._spans == other._spans

    def __hash__(self) -> int:
        return hash(self._spans)

    def __repr__(self) -> str:
        return f"SpanSet({list(self._spans)})"

    def __contains__(self, moment: int) -> bool:
        return any(moment in span for span in self._spans)

    @property
    def minutes(self) -> int:
        return sum(span.minutes for span in self._spans)

    def __or__(self, other: SpanSet) -> SpanSet:
        return SpanSet([*self, *other])

    def __and__(self, other: SpanSet) -> SpanSet:
        common = []
        for mine in self:
            for theirs in other:
                start, end = max(mine.start, theirs.start), min(mine.end, theirs.end)
                if start < end:
                    common.append(Span(start, end))
        return SpanSet(common)

    def __sub__(self, other: SpanSet) -> SpanSet:
        left = []
        for mine in self:
            start = mine.start
            for theirs in other:
                if theirs.end <= start or theirs.start >= mine.end:
                    continue
                if theirs.start > start:
                    left.append(Span(start, theirs.start))
                start = theirs.end
            if start < mine.end:
                left.append(Span(start, mine.end))
        return SpanSet(left)


def _merge(spans: Iterable[Span]) -> Iterator[Span]:
    current = None
    for span in sorted(spans):
        if current is None:
            current = span
        elif span.start < current.end:
            current = Span(current.start, span.end)
        else:
            yield current
            current = span
    if current is not None:
        yield current
