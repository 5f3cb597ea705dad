"""Secrets: what is known of them, and what can be asked. A value goes in and never comes out."""

from __future__ import annotations

from .action import Action
from .value import Moment, PerhapsMoment, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class SecretValue(Value):
    """Bytes that nothing prints, logs or records; whoever needs them says `.data`."""

    data: bytes

    def __init__(self, data: bytes) -> None:
        super().__init__(data=data)

    def __repr__(self) -> str:
        return "SecretValue([redacted])"

    def __rich_repr__(self) -> Iterator[tuple[str, object]]:
        yield "data", "[redacted]"


class Secret(Value):
    """What is known of a kept secret. `version` counts how often it was set; times are seconds since the epoch."""

    name: str
    version: int
    created_at: float
    updated_at: float
    used_at: float | None = None
    """When a sandbox was last given its use."""
    key: str
    """The id of the key that its own is sealed with."""
    created = Moment("created_at")
    updated = Moment("updated_at")
    used = PerhapsMoment("used_at")


class SetSecret(Action[Secret], tag="secret.set"):
    """Keeps a value under a name, or another value under a name that is there. It holds for every sandbox that uses
    the secret when this returns."""

    name: str
    value: SecretValue


class RemoveSecret(Action[None], tag="secret.remove"):
    """Revokes it: no sandbox can use it any more when this returns."""

    name: str


class ListSecrets(Action[tuple[Secret, ...]], tag="secret.list", repeatable=True):
    """One's own, by name. Never values."""


class RotateVaultKey(Action[int], tag="secret.rekey"):
    """A new key for the keys of everybody's secrets; the old one is forgotten. Returns how many were sealed anew."""
