"""Who is on duty when."""

from __future__ import annotations

from .notation import NotationError, parse_moment, parse_spans
from .spans import WEEK, Span, SpanSet


class Roster:
    """A week that repeats: for each person, when they are on duty."""

    def __init__(self, duties: dict[str, SpanSet]) -> None:
        self._duties = dict(duties)

    @classmethod
    def parse(cls, text: str) -> Roster:
        """One person a line, `name: spans`; `#` starts a comment."""
        duties: dict[str, SpanSet] = {}
        for line in text.splitlines():
            line = line.partition("#")[0].strip()
            if not line:
                continue
            name, colon, spans = line.partition(":")
            if not colon or not name.strip():
                raise NotationError(f"no name in {line!r}")
            duties[name.strip()] = duties.get(name.strip(), SpanSet()) | parse_spans(spans)
        return cls(duties)

    def on_duty(self, moment: str) -> list[str]:
        minute = parse_moment(moment)
        return sorted(name for name, spans in self._duties.items() if minute in spans)

    def hours(self, name: str) -> float:
        return self._duties[name].minutes / 60

    def gaps(self) -> SpanSet:
        """When nobody is on duty."""
        covered = SpanSet()
        for spans in self._duties.values():
            covered |= spans
        return SpanSet([Span(0, WEEK)]) - covered

    def clashes(self, first: str, second: str) -> SpanSet:
        return self._duties[first] & self._duties[second]
