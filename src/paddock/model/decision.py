"""Principals, and verdicts."""

from __future__ import annotations

import msgspec

from .ids import SandboxId

_NESTED = "nested:"


class Principal(msgspec.Struct, frozen=True):
    """The identity of a caller: `local:<uid>` for embedded callers, `nested:<its id>` for programs inside a sandbox."""

    id: str

    @property
    def sandbox(self) -> SandboxId | None:
        """The sandbox inside which it asks."""
        return SandboxId(self.id.removeprefix(_NESTED)) if self.id.startswith(_NESTED) else None


def nested_principal(sandbox: str) -> Principal:
    """Return the principal of all programs inside a sandbox."""
    return Principal(_NESTED + sandbox)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict as a value, with the reason for callers and records."""

    allowed: bool
    reason: str
    rule: str = "default"
