"""The text form: `mon 09:00-12:30, 13:00-17:00; sun 22:00-06:00`."""

from __future__ import annotations

import re

from .spans import DAY, Span, SpanSet

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_RANGE = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d)")
_MOMENT = re.compile(r"([a-z]{3}) (\d\d):(\d\d)")


class NotationError(ValueError):
    """The text is not in the notation; the message says where."""


def parse_moment(text: str) -> int:
    """Minutes since Monday 00:00 of `tue 13:45`."""
    match = _MOMENT.fullmatch(text.strip().lower())
    if not match or match[1] not in DAYS:
        raise NotationError(f"not a moment: {text!r}")
    return DAYS.index(match[1]) * DAY + _clock(match[2], match[3], text)


def parse_spans(text: str) -> SpanSet:
    """Days are separated by `;`, ranges by `,`. A range that ends before it starts ends on the next day."""
    spans = []
    for part in filter(None, (p.strip().lower() for p in text.split(";"))):
        day, _, ranges = part.partition(" ")
        if day not in DAYS:
            raise NotationError(f"not a day: {day!r}")
        for piece in ranges.split(","):
            match = _RANGE.fullmatch(piece.strip())
            if not match:
                raise NotationError(f"not a range: {piece.strip()!r}")
            midnight = DAYS.index(day) * DAY
            start = midnight + _clock(match[1], match[2], piece)
            end = midnight + _clock(match[3], match[4], piece, last=True)
            if end <= start:
                end += DAY
            spans.append(Span(start, end))
    return SpanSet(spans)


def format_spans(spans: SpanSet) -> str:
    """The inverse of `parse_spans`; spans longer than a day have no text form."""
    by_day: dict[str, list[str]] = {}
    for span in spans:
        day, start = divmod(span.start, DAY)
        by_day.setdefault(DAYS[day], []).append(f"{_text(start)}-{_text(span.end % DAY)}")
    return "; ".join(f"{day} {', '.join(ranges)}" for day, ranges in by_day.items())


def _clock(hour: str, minute: str, where: str, last: bool = False) -> int:
    minutes = int(hour) * 60 + int(minute)
    if int(minute) > 59 or minutes > DAY - (not last):
        raise NotationError(f"not a time of day: {hour}:{minute} in {where.strip()!r}")
    return minutes


def _text(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"
