"""Secrets, without their values, and the actions on them. No action returns a value."""

from __future__ import annotations

import re

from paddock.errors import InvalidArgumentError

from .action import Action
from .value import DatetimeField, OptionalDatetimeField, Value

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class SecretValue(Value):
    """Bytes that paddock never prints, logs or records. `.data` returns them."""

    data: bytes

    def __init__(self, data: bytes) -> None:
        super().__init__(data=data)

    def __repr__(self) -> str:
        return "SecretValue([redacted])"

    def __rich_repr__(self) -> Iterator[tuple[str, object]]:
        yield "data", "[redacted]"


class Secret(Value):
    """The properties of a stored secret. `version` counts its changes. Times are seconds since the epoch."""

    name: str
    version: int
    created_at: float
    updated_at: float
    used_at: float | None = None
    """The time at which a sandbox last got it."""
    key: str
    """The id of the vault key that encrypts the secret's key."""
    created = DatetimeField("created_at")
    updated = DatetimeField("updated_at")
    used = OptionalDatetimeField("used_at")


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
    """Replace the vault key that encrypts the keys of all secrets, and delete the old one.

    Returns the number of secrets.
    """


def check_secret_name(name: str) -> None:
    """Check the name of a secret, which is that of a variable. InvalidArgumentError."""
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"{name[:140]!r} is not a valid name of a secret: write letters, digits and `_`, and no digit first",
            field="name",
        )
