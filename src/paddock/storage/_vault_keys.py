"""Where the keys are that wrap the keys of secrets: a file, the environment, or the keyring of the desktop.

The newest comes first; the others open what was sealed before.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import hashlib
import os
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from paddock.errors import NotConfigured
from paddock.keeper.layout import VAULT_KEY, VAULT_LOCK

KEY_BYTES = 32
VARIABLE = "PADDOCK_VAULT_KEY"
KEYRING = "keyring"
_SERVICE = "paddock"
_MOST_BYTES = 1 << 16


class VaultKeys(Protocol):
    @property
    def where(self) -> str:
        """In words."""
        ...

    def ring(self, *, make: bool = False) -> tuple[bytes, ...]:
        """The newest first; none, unless `make`. NotConfigured: what is there are no keys."""
        ...

    def begin(self) -> tuple[bytes, ...]:
        """A new key in front of the others, kept. To be called with the lock held."""
        ...

    def finish(self) -> None:
        """Forgets all but the newest. To be called with the lock held, when nothing is sealed with the others."""
        ...

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Nobody else seals, or changes keys, meanwhile."""
        ...


def open_keys(state_dir: Path, environment: Mapping[str, str]) -> VaultKeys:
    """PADDOCK_VAULT_KEY holds keys, or says `keyring`; without it there is a file."""
    said = environment.get(VARIABLE, "")
    if not said:
        return FileKeys(state_dir)
    return KeyringKeys(state_dir) if said == KEYRING else EnvironmentKeys(state_dir, said)


def key_id(key: bytes) -> str:
    """Tells keys apart and says nothing about them."""
    return hashlib.sha256(b"paddock vault key\0" + key).hexdigest()[:16]


class _Locking:
    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        descriptor = os.open(self._state_dir / VAULT_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class FileKeys(_Locking):
    """A file of the state directory that only its owner can read, made when it is needed first."""

    @property
    def where(self) -> str:
        return str(self._path)

    @property
    def _path(self) -> Path:
        return self._state_dir / VAULT_KEY

    def ring(self, *, make: bool = False) -> tuple[bytes, ...]:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return self.begin() if make else ()
        except OSError as error:
            raise NotConfigured(f"{self._path} cannot be read: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if found.st_mode & 0o077 or found.st_uid != os.geteuid():
                raise NotConfigured(
                    f"{self._path} can be read by others than its owner", hint=f"chmod 600 {self._path}"
                )
            return _decoded(file.read(_MOST_BYTES).decode("ascii", "replace").split(), self.where)

    def begin(self) -> tuple[bytes, ...]:
        old = self.ring()
        return self._keep((os.urandom(KEY_BYTES), *old))

    def finish(self) -> None:
        self._keep(self.ring()[:1])

    def _keep(self, keys: Sequence[bytes]) -> tuple[bytes, ...]:
        fresh = self._path.with_suffix(".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(b"".join(base64.b64encode(key) + b"\n" for key in keys))
            file.flush()
            os.fsync(descriptor)  # without its key a secret is lost: this one survives a power loss
        os.rename(fresh, self._path)
        directory = os.open(self._state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return tuple(keys)


class EnvironmentKeys(_Locking):
    """Keys in base64, with commas between them: whoever starts the service keeps and changes them."""

    where = VARIABLE

    def __init__(self, state_dir: Path, said: str) -> None:
        super().__init__(state_dir)
        self._keys = _decoded(said.split(","), VARIABLE)

    def ring(self, *, make: bool = False) -> tuple[bytes, ...]:
        return self._keys

    def begin(self) -> tuple[bytes, ...]:
        return self._keys  # the newest is the one that was put in front

    def finish(self) -> None: ...


class KeyringKeys(_Locking):
    """The keyring of the desktop's session, through the package `keyring`."""

    where = "the keyring"

    def ring(self, *, make: bool = False) -> tuple[bytes, ...]:
        said: str | None = _keyring().get_password(_SERVICE, str(self._state_dir))
        if said:
            return _decoded(said.split(","), self.where)
        return self.begin() if make else ()

    def begin(self) -> tuple[bytes, ...]:
        return self._keep((os.urandom(KEY_BYTES), *self.ring()))

    def finish(self) -> None:
        self._keep(self.ring()[:1])

    def _keep(self, keys: Sequence[bytes]) -> tuple[bytes, ...]:
        said = ",".join(base64.b64encode(key).decode() for key in keys)
        _keyring().set_password(_SERVICE, str(self._state_dir), said)
        return tuple(keys)


def _keyring() -> Any:
    try:
        from importlib import import_module

        return import_module("keyring")
    except ImportError:
        raise NotConfigured(
            f"{VARIABLE}={KEYRING}, and the package `keyring` is not installed", hint="pip install keyring"
        ) from None


def _decoded(words: Sequence[str], where: str) -> tuple[bytes, ...]:
    try:
        keys = tuple(base64.b64decode(word, validate=True) for word in words)
    except (binascii.Error, ValueError):
        keys = ()
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise NotConfigured(
            f"{where} holds something else than keys of {KEY_BYTES} bytes in base64",
            hint="head -c 32 /dev/urandom | base64",
        )
    return keys
