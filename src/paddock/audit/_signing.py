"""The key that signs the log. It imports `cryptography` only for a signature or a check."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from paddock.errors import InvalidArgumentError, NotConfiguredError
from paddock.supervisor.layout import AUDIT_KEY

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_MOST_BYTES = 1 << 16


class SigningKey:
    """An Ed25519 key. `public` is its 32 bytes."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw()

    @property
    def id(self) -> str:
        return key_id(self.public)

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)


def key_id(public: bytes) -> str:
    """Return the SHA-256 of the 32 bytes of a public key."""
    return hashlib.sha256(public).hexdigest()


def open_key(state_dir: Path, given_path: str | None = None) -> SigningKey:
    """Open the key in the file `given_path`, or the one of the state directory, and create the latter if it is missing.

    Raises NotConfiguredError if it can't read the key, others can read it, or it isn't an Ed25519 key.
    """
    path = Path(given_path) if given_path else state_dir / AUDIT_KEY
    try:
        pem = _read(path)
    except FileNotFoundError:
        if given_path:
            raise NotConfiguredError(
                f"audit_key_file: there is no {path}", hint=f"openssl genpkey -algorithm ed25519 -out {path}"
            ) from None
        pem = _make(path)
    return SigningKey(_private(pem, path))


def _read(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NotConfiguredError(f"the audit key {path} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if found.st_mode & 0o077 or found.st_uid not in (0, os.geteuid()):
            raise NotConfiguredError(
                f"the audit key {path} can be read by others than its owner", hint=f"chmod 600 {path}"
            )
        return file.read(_MOST_BYTES)


def _make(path: Path) -> bytes:
    """Make a key. Two processes that make it at once get the same one."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    pem = Ed25519PrivateKey.generate().private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    fresh = path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        fresh.unlink()
    return _read(path)


def _private(pem: bytes, path: Path) -> Ed25519PrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise NotConfiguredError(f"{path} holds no Ed25519 key", hint=f"openssl genpkey -algorithm ed25519 -out {path}")
    return key


def public_pem(public: bytes) -> str:
    """SubjectPublicKeyInfo (RFC 8410): the 32 bytes after a head that never changes."""
    der = bytes.fromhex("302a300506032b6570032100") + public
    return f"-----BEGIN PUBLIC KEY-----\n{base64.b64encode(der).decode()}\n-----END PUBLIC KEY-----\n"


def read_public_key(text: bytes) -> bytes:
    """Return the 32 bytes of a PEM. InvalidArgument."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(text)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidArgumentError("the file is not an Ed25519 public key in PEM", hint="paddock audit key > audit.pub")
    return key.public_bytes_raw()


def is_signed(public: bytes, signature: bytes, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
