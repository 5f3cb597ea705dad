"""Who asks, and the verdict."""

from __future__ import annotations

import msgspec


class Principal(msgspec.Struct, frozen=True):
    """Who asks. Embedded callers are `local:<uid>`."""

    id: str


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict is a value, with the reason that will be shown and recorded."""

    allowed: bool
    reason: str
    rule: str = "default"
