"""Secrets: set, list, remove; and their values, for those who may use them."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from paddock.errors import InvalidArgument, NotFound, SecretUnavailable
from paddock.model import ListSecrets, RemoveSecret, RotateVaultKey, Secret, SecretValue, SetSecret
from paddock.storage._vault import Vault
from paddock.storage._vault_keys import open_keys
from paddock.storage.secret_sources._refused import LEAST_BYTES, MOST_BYTES

from ._clock import Clock
from ._gate import Entry
from ._secret_store import SecretStore
from ._store import Store

Rotated: TypeAlias = Callable[[str, str, SecretValue | None], Awaitable[None]]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


class Secrets:
    """`rotated` is told of each that has another value now, or none: it holds when that returns."""

    def __init__(self, *, store: SecretStore, open_vault: Callable[[], Vault], clock: Clock, rotated: Rotated) -> None:
        self._store, self._open_vault, self._clock, self._rotated = store, open_vault, clock, rotated

    @classmethod
    def wired(cls, state_dir: Path, *, store: Store, clock: Clock, rotated: Rotated) -> Secrets:
        def open_vault() -> Vault:
            return Vault(open_keys(state_dir, os.environ))

        return cls(store=SecretStore(store), open_vault=open_vault, clock=clock, rotated=rotated)

    @cached_property
    def _vault(self) -> Vault:
        return self._open_vault()

    async def perform(
        self, action: SetSecret | RemoveSecret | ListSecrets | RotateVaultKey, entry: Entry
    ) -> Secret | tuple[Secret, ...] | int | None:
        owner = entry.principal.id
        match action:
            case SetSecret(name=name, value=value):
                check_name(name)
                check_value(name, value)
                secret = self._set(owner, name, value)
                await self._rotated(owner, name, value)
                return secret
            case RemoveSecret(name=name):
                if not self._store.remove(owner, name):
                    raise NotFound(f"no secret {name!r}", hint="paddock secret ls", secret=name)
                await self._rotated(owner, name, None)
                return None
            case ListSecrets():
                return self._store.list(owner)
            case RotateVaultKey():
                return self._rotate()

    def value(self, owner: str, name: str) -> SecretValue:
        """SecretUnavailable: there is none of that name, or it cannot be opened."""
        found = self._store.get(owner, name)
        if found is None:
            raise SecretUnavailable(
                f"secret {name} has no value: nobody has set it", hint=f"paddock secret set {name}", secret=name
            )
        place, sealed = found
        value = SecretValue(self._vault.open(sealed, place))
        self._store.used(owner, name, self._clock.wall())
        return value

    def _set(self, owner: str, name: str, value: SecretValue) -> Secret:
        with self._vault.keys.locked():
            return self._store.put(owner, name, self._clock.wall(), lambda place: self._vault.seal(value.data, place))

    def _rotate(self) -> int:
        # Whatever is killed in between, every row's key is in the ring.
        with self._vault.keys.locked():
            self._vault.keys.begin()
            count = self._store.reseal(self._vault.rewrap)
            self._vault.keys.finish()
        return count


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name[:140]!r} is no name of a secret: letters, digits and `_`, no digit in front, as with variables",
            field="name",
        )


def check_value(name: str, value: SecretValue) -> None:
    size = len(value.data)
    if size < LEAST_BYTES:
        raise InvalidArgument(
            f"{name} has {size} bytes, and a secret at least {LEAST_BYTES}: a shorter one could not be told from"
            " ordinary text where it comes back and has to be taken out",
            field="value",
        )
    if size > MOST_BYTES:
        raise InvalidArgument(f"{name} has {size} bytes, and a secret at most {MOST_BYTES}", field="value")
