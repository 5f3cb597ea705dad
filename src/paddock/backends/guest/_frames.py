"""Frames of a guest (`docs/design/guest.md`): which ones may come. Everything that arrives is an attacker's."""

from __future__ import annotations

from paddock.wire import Frame, Inbox, Kind, WireError
from paddock.wire.guest import Credit, Limit, Stream

_KINDS = {int(kind): kind for kind in Kind if kind not in (Kind.OPEN, Kind.CONTROL)}
"""Those that a guest may send."""
_STREAMED = (Kind.DATA, Kind.EOF, Kind.CREDIT)
"""Their flags are the number of a stream."""


def inbox() -> Inbox:
    return Inbox(Limit.BODY, _KINDS)


def require_sound(frame: Frame) -> None:
    """Raise WireError for a frame that no guest may send at any time."""
    kind, channel, body = frame.kind, frame.channel, frame.body
    if (channel == 0) != (kind is Kind.HELLO):
        raise WireError(f"{kind.name} on channel {channel}")
    if frame.flags and (kind not in _STREAMED or frame.flags > Stream.ERR):
        raise WireError(f"{kind.name} of the unknown kind {frame.flags}")
    if not body and kind is Kind.DATA:
        raise WireError("DATA of no bytes")
    if body and (kind is Kind.EOF or kind is Kind.CLOSE):
        raise WireError(f"{kind.name} with a body")


def credit_of(frame: Frame) -> int:
    """Return the bytes that a CREDIT grants. WireError."""
    credit = Credit.unpack(frame.body).bytes
    if not 0 < credit <= Limit.CREDIT:
        raise WireError(f"CREDIT of {credit} bytes")
    return credit
