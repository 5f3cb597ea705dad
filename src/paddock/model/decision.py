"""Who asks, and the verdict."""

from __future__ import annotations

import msgspec

from .ids import SandboxId

_NESTED = "nested:"


class Principal(msgspec.Struct, frozen=True):
    """Who asks. Embedded callers are `local:<uid>`, programs inside a sandbox `nested:<its id>`."""

    id: str

    @property
    def sandbox(self) -> SandboxId | None:
        """The sandbox inside which it asks."""
        return SandboxId(self.id.removeprefix(_NESTED)) if self.id.startswith(_NESTED) else None


def nested_principal(sandbox: str) -> Principal:
    """Whoever is inside that sandbox."""
    return Principal(_NESTED + sandbox)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict is a value, with the reason that will be shown and recorded."""

    allowed: bool
    reason: str
    rule: str = "default"
