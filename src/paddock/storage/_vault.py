"""Secrets at rest: each version has a data key of its own, which is wrapped by a key that lies elsewhere.

AES-256-GCM twice. Owner, name and version are authenticated with both, so that a row moved to another owner, name or
version cannot be opened. Whoever can write the database can still bring back an older row of the same version.
"""

from __future__ import annotations

import os

import msgspec

from paddock.errors import SecretUnavailable

from ._vault_keys import KEY_BYTES, VaultKeys, key_id

_NONCE_BYTES = 12


class Place(msgspec.Struct, frozen=True):
    """Whose value it is: what a sealed one cannot be taken away from."""

    owner: str
    name: str
    version: int

    def authenticated(self, purpose: str) -> bytes:
        return msgspec.json.encode(["paddock secret", purpose, self.owner, self.name, self.version])


class Sealed(msgspec.Struct, frozen=True):
    """A value as the database keeps it. `key` is the id of the key that `wrapped` is sealed with."""

    key: str
    wrapped: bytes
    sealed: bytes


class Vault:
    def __init__(self, keys: VaultKeys) -> None:
        self.keys = keys

    def seal(self, value: bytes, place: Place) -> Sealed:
        """Under the newest key, which is made if there is none."""
        data_key, newest = os.urandom(KEY_BYTES), self.keys.ring(make=True)[0]
        return Sealed(
            key_id(newest),
            _encrypt(newest, data_key, place.authenticated("key")),
            _encrypt(data_key, value, place.authenticated("value")),
        )

    def open(self, sealed: Sealed, place: Place) -> bytes:
        """SecretUnavailable: its key is not here, or it is not what was sealed for that place."""
        data_key = self._unwrap(sealed, place)
        return self._decrypt(data_key, sealed.sealed, place.authenticated("value"), place)

    def rewrap(self, sealed: Sealed, place: Place) -> Sealed:
        """The same under the newest key. The value itself is not touched."""
        data_key, newest = self._unwrap(sealed, place), self.keys.ring(make=True)[0]
        wrapped = _encrypt(newest, data_key, place.authenticated("key"))
        return Sealed(key_id(newest), wrapped, sealed.sealed)

    def _unwrap(self, sealed: Sealed, place: Place) -> bytes:
        for key in self.keys.ring():
            if key_id(key) == sealed.key:
                return self._decrypt(key, sealed.wrapped, place.authenticated("key"), place)
        raise SecretUnavailable(
            f"secret {place.name} cannot be opened: it needs the key {sealed.key}, which {self.keys.where} has not",
            hint=f"bring that key back, or set it again: paddock secret set {place.name}",
            secret=place.name,
        )

    @staticmethod
    def _decrypt(key: bytes, data: bytes, authenticated: bytes, place: Place) -> bytes:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            return AESGCM(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], authenticated)
        except (InvalidTag, ValueError):
            raise SecretUnavailable(
                f"secret {place.name} cannot be opened: what the database has is not what was sealed for it",
                hint=f"set it again: paddock secret set {place.name}",
                secret=place.name,
            ) from None


def _encrypt(key: bytes, data: bytes, authenticated: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, data, authenticated)
