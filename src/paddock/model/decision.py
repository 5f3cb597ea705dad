"""Principals, and verdicts."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from .ids import SandboxId

_LOCAL, _NESTED = "local:", "nested:"


class Principal(msgspec.Struct, frozen=True):
    """The identity of a caller: `local:<uid>` for embedded callers, `nested:<its id>` for programs inside a sandbox."""

    id: str

    @property
    def name(self) -> str:
        """The name for people to read: of the user, or of the sandbox. The id where this machine has no such user."""
        if self.sandbox is not None:
            return f"a program inside {self.sandbox}"
        return _user_name(self.id.removeprefix(_LOCAL)) or self.id if self.id.startswith(_LOCAL) else self.id

    @property
    def sandbox(self) -> SandboxId | None:
        """The sandbox inside which it asks."""
        return SandboxId(self.id.removeprefix(_NESTED)) if self.id.startswith(_NESTED) else None


@lru_cache(256)
def _user_name(uid: str) -> str | None:
    """Every kill says one, and a directory of users may be far away."""
    import pwd

    try:
        return pwd.getpwuid(int(uid)).pw_name
    except (ValueError, KeyError, OverflowError):
        return None


def nested_principal(sandbox: str) -> Principal:
    """Return the principal of all programs inside a sandbox."""
    return Principal(_NESTED + sandbox)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict as a value, with the reason for callers and records."""

    allowed: bool
    reason: str
    rule: str = "default"
