"""What an action is."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

R_co = TypeVar("R_co", covariant=True)


class Action(msgspec.Struct, Generic[R_co], frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="action"):
    """Something asked. Subclasses are the closed union `AnyAction`."""
