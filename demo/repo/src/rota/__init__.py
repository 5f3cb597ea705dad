"""Duty rosters."""

from .notation import NotationError, format_spans, parse_moment, parse_spans
from .roster import Roster
from .spans import Span, SpanSet

__all__ = ["NotationError", "Roster", "Span", "SpanSet", "format_spans", "parse_moment", "parse_spans"]
