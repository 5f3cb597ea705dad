"""Principals, and verdicts."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from .ids import SandboxId

_LOCAL, _NESTED = "local:", "nested:"


class Principal(msgspec.Struct, frozen=True):
    """The identity of a caller: `local:<uid>` for embedded callers, `nested:<its id>` for programs inside a sandbox."""

    id: str

    @property
    def name(self) -> str:
        """The user's name, for people to read. The id where this machine has no such user."""
        with suppress(ValueError, KeyError, OverflowError):
            if self.id.startswith(_LOCAL):
                import pwd

                return pwd.getpwuid(int(self.id.removeprefix(_LOCAL))).pw_name
        return self.id

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
