"""A store of trusted certificates as every Java reads one: JKS, which needs no Java to be written.

Nothing in it is secret; its password is the one that all programs of Java assume of such a store.
"""

from __future__ import annotations

import hashlib
import ssl
import struct

_MAGIC, _VERSION, _TRUSTED = 0xFEEDFEED, 2, 2
_PASSWORD, _SALT = "changeit", b"Mighty Aphrodite"
_MADE_MS = 1_577_836_800_000  # who lists them is shown a day
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def entries(pem: bytes, prefix: str) -> tuple[int, bytes]:
    """How many certificates there are in `pem`, and they as entries of a store."""
    made = [_entry(f"{prefix}-{number}", each) for number, each in enumerate(_certificates(pem), 1)]
    return len(made), b"".join(made)


class Store:
    """Stores that begin with the same entries, `most`, and end with one more each: most of the work is done once."""

    def __init__(self, most: tuple[int, bytes]) -> None:
        count, entries = most
        self._head = struct.pack("!III", _MAGIC, _VERSION, count + 1) + entries
        self._keyed = hashlib.sha1(_PASSWORD.encode("utf-16-be") + _SALT + self._head, usedforsecurity=False)

    def with_one(self, certificate: bytes, alias: str) -> bytes:
        """`certificate` is in PEM, and alone."""
        _, last = entries(certificate, alias)
        keyed = self._keyed.copy()
        keyed.update(last)
        return b"".join((self._head, last, keyed.digest()))


def _certificates(pem: bytes) -> list[bytes]:
    pieces = pem.decode("ascii", "replace").split(_BEGIN)[1:]
    return [ssl.PEM_cert_to_DER_cert(f"{_BEGIN}{piece.partition(_END)[0]}{_END}") for piece in pieces if _END in piece]


def _entry(alias: str, certificate: bytes) -> bytes:
    head = struct.pack("!I", _TRUSTED) + _text(alias) + struct.pack("!Q", _MADE_MS) + _text("X.509")
    return head + struct.pack("!I", len(certificate)) + certificate


def _text(text: str) -> bytes:
    return struct.pack("!H", len(text)) + text.encode("ascii")
