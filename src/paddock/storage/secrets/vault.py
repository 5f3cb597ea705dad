"""Secrets at rest: each version has a separate data key, wrapped by a key from elsewhere.

AES-256-GCM twice. Both authenticate owner, name and version, so a row can't serve for another owner, name or version.
An attacker with write access to the database can still restore an older row of the same version.

The wrapping keys lie in a file or the keyring of the desktop, or a command prints them. The newest comes first. The
others decrypt older secrets.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from paddock.errors import NotConfiguredError, SecretUnavailableError
from paddock.linux.whole import keep_file
from paddock.model.config import Config
from paddock.supervisor.layout import VAULT_KEY

KEY_BYTES = 32
_SERVICE = "paddock"
_MOST_BYTES = 1 << 16
_COMMAND_SECONDS = 20.0


class VaultKeys(ABC):
    """The keys of a vault. No other process uses them: the daemon has no await between encrypting and changing keys."""

    where: str
    """A description of the keys' place."""

    @abstractmethod
    def ring(self) -> tuple[bytes, ...]:
        """Return the keys, the newest first. Raises NotConfiguredError for invalid keys."""

    def begin(self) -> tuple[bytes, ...]:
        """Keep a new key in front of the others."""
        return self._keep((os.urandom(KEY_BYTES), *self.ring()))

    def finish(self) -> None:
        """Delete all keys but the newest. The caller has encrypted every secret with that one."""
        self._keep(self.ring()[:1])

    @abstractmethod
    def _keep(self, keys: tuple[bytes, ...]) -> tuple[bytes, ...]: ...


def open_keys(state_dir: Path, config: Config) -> VaultKeys:
    """Open the keys where `config` says, or in a file of the state directory."""
    if config.vault_key_command is not None:
        return CommandKeys(config.vault_key_command)
    if config.vault_keyring:
        return KeyringKeys(state_dir)
    return FileKeys(state_dir / VAULT_KEY if config.vault_key_file is None else Path(config.vault_key_file))


def key_id(key: bytes) -> str:
    """Return an id that tells keys apart and says nothing about them."""
    return hashlib.sha256(b"paddock vault key\0" + key).hexdigest()[:16]


class FileKeys(VaultKeys):
    """The keys in a file that only its owner can read. The first use creates it."""

    def __init__(self, path: Path) -> None:
        self._path, self.where = path, str(path)

    def ring(self) -> tuple[bytes, ...]:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise NotConfiguredError(f"{self._path} cannot be read: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if found.st_mode & 0o077 or found.st_uid != os.geteuid():
                raise NotConfiguredError(
                    f"{self._path} can be read by others than its owner", hint=f"chmod 600 {self._path}"
                )
            return _decoded(file.read(_MOST_BYTES).decode("ascii", "replace").split(), self.where)

    def _keep(self, keys: tuple[bytes, ...]) -> tuple[bytes, ...]:
        keep_file(self._path, b"".join(base64.b64encode(key) + b"\n" for key in keys))
        return keys


class CommandKeys(VaultKeys):
    """Keys in base64, a line each, from a command that runs once. Its author keeps and changes them."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv, self.where = argv, f"what {argv[0]} prints"

    @cached_property
    def _keys(self) -> tuple[bytes, ...]:
        try:
            done = subprocess.run(
                self._argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_SECONDS, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise NotConfiguredError(f"vault_key_command: {self._argv[0]} gave no keys: {_why(error)}") from None
        return _decoded(done.stdout[:_MOST_BYTES].decode("ascii", "replace").split(), self.where)

    def ring(self) -> tuple[bytes, ...]:
        return self._keys

    def _keep(self, keys: tuple[bytes, ...]) -> tuple[bytes, ...]:
        return self._keys  # the newest is the one that was put in front


class KeyringKeys(VaultKeys):
    """The keyring of the desktop's session, through the package `keyring`."""

    where = "the keyring"

    def __init__(self, state_dir: Path) -> None:
        self._account = str(state_dir)

    def ring(self) -> tuple[bytes, ...]:
        encoded: str | None = _keyring().get_password(_SERVICE, self._account)
        return _decoded(encoded.split(","), self.where) if encoded else ()

    def _keep(self, keys: tuple[bytes, ...]) -> tuple[bytes, ...]:
        encoded = ",".join(base64.b64encode(key).decode() for key in keys)
        _keyring().set_password(_SERVICE, self._account, encoded)
        return keys


def _keyring() -> Any:
    try:
        from importlib import import_module

        return import_module("keyring")
    except ImportError:
        raise NotConfiguredError(
            "vault_keyring = true, and the package `keyring` isn't installed",
            hint="pip install 'paddock-sandbox[keyring]'",
        ) from None


def _why(error: OSError | subprocess.SubprocessError) -> str:
    """Return why a command failed, without its output, which may be the keys."""
    if isinstance(error, subprocess.CalledProcessError):
        return f"it ended with {error.returncode}"
    return (
        f"it did not end within {_COMMAND_SECONDS:g} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
    )


def _decoded(words: Sequence[str], where: str) -> tuple[bytes, ...]:
    try:
        keys = tuple(base64.b64decode(word, validate=True) for word in words)
    except (binascii.Error, ValueError):
        keys = ()
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise NotConfiguredError(
            f"{where} holds something else than keys of {KEY_BYTES} bytes in base64",
            hint="head -c 32 /dev/urandom | base64",
        )
    return keys


_NONCE_BYTES = 12


class ValuePlace(msgspec.Struct, frozen=True):
    """The owner, name and version of an encrypted value. Decryption fails for any other."""

    owner: str
    name: str
    version: int

    def authenticated(self, purpose: str) -> bytes:
        return msgspec.json.encode(["paddock secret", purpose, self.owner, self.name, self.version])


class SealedValue(msgspec.Struct, frozen=True):
    """A value as the database keeps it. `key` is the id of the key that encrypts `wrapped`."""

    key: str
    wrapped: bytes
    sealed: bytes


class Vault:
    def __init__(self, keys: VaultKeys) -> None:
        self.keys = keys

    def seal(self, value: bytes, place: ValuePlace) -> SealedValue:
        """Encrypt a value under the newest key, and create a key if there is none."""
        data_key, newest = os.urandom(KEY_BYTES), (self.keys.ring() or self.keys.begin())[0]
        return SealedValue(
            key_id(newest),
            _encrypt(newest, data_key, place.authenticated("key")),
            _encrypt(data_key, value, place.authenticated("value")),
        )

    def open(self, sealed: SealedValue, place: ValuePlace) -> bytes:
        """Decrypt a value. SecretUnavailableError: its key isn't here, or the value wasn't encrypted for that place."""
        data_key = self._unwrap(sealed, place)
        return self._decrypt(data_key, sealed.sealed, place.authenticated("value"), place)

    def rewrap(self, sealed: SealedValue, place: ValuePlace) -> SealedValue:
        """Wrap the data key with the newest key. The value itself doesn't change."""
        data_key, newest = self._unwrap(sealed, place), self.keys.ring()[0]
        wrapped = _encrypt(newest, data_key, place.authenticated("key"))
        return SealedValue(key_id(newest), wrapped, sealed.sealed)

    def _unwrap(self, sealed: SealedValue, place: ValuePlace) -> bytes:
        for key in self.keys.ring():
            if key_id(key) == sealed.key:
                return self._decrypt(key, sealed.wrapped, place.authenticated("key"), place)
        raise SecretUnavailableError(
            f"secret {place.name} cannot be opened: it needs the key {sealed.key}, which {self.keys.where} has not",
            hint=f"bring that key back, or set it again: paddock secret set {place.name}",
            secret=place.name,
        )

    @staticmethod
    def _decrypt(key: bytes, data: bytes, authenticated: bytes, place: ValuePlace) -> bytes:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            return AESGCM(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], authenticated)
        except (InvalidTag, ValueError):
            raise SecretUnavailableError(
                f"secret {place.name} cannot be opened: what the database has is not what was sealed for it",
                hint=f"set it again: paddock secret set {place.name}",
                secret=place.name,
            ) from None


def _encrypt(key: bytes, data: bytes, authenticated: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, data, authenticated)
