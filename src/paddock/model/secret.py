"""Secrets: what is known of them, and what can be asked. A value goes in and never comes out."""

from __future__ import annotations

from typing import Any

import msgspec

from .action import Action


class SecretValue(msgspec.Struct, frozen=True):
    """Bytes that nothing prints, logs or records; whoever needs them says `.data`."""

    data: bytes

    def __repr__(self) -> str:
        return "SecretValue([redacted])"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("data", "[redacted]")]


class Secret(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a kept secret. `version` counts how often it was set; times are seconds since the epoch."""

    name: str
    version: int
    created_at: float
    updated_at: float
    used_at: float | None = None
    """When a sandbox was last given its use."""
    key: str
    """The id of the key that its own is sealed with."""


class SetSecret(Action[Secret], frozen=True, tag="secret.set"):
    """Keeps a value under a name, or another value under a name that is there. It holds for every sandbox that uses
    the secret when this returns."""

    name: str
    value: SecretValue


class RemoveSecret(Action[None], frozen=True, tag="secret.remove"):
    """Revokes it: no sandbox can use it any more when this returns."""

    name: str


class ListSecrets(Action[tuple[Secret, ...]], frozen=True, tag="secret.list"):
    """One's own, by name. Never values."""


class RotateVaultKey(Action[int], frozen=True, tag="secret.rekey"):
    """A new key for the keys of everybody's secrets; the old one is forgotten. Returns how many were sealed anew."""
