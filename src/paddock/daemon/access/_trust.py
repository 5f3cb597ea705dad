"""Write the certificates that programs inside trust: the machine's and the sandbox's own authority in one file; the
same in another for Java; and the authority alone in a policy for Chromium, which has the others itself.

The backend has mounted the files where programs look for them (`supervisor/trust_places.py`). This module writes their
content in place, so that programs with an open file see it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import ssl
import struct
from functools import cache
from pathlib import Path

from paddock.supervisor import layout

_PLACES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_MAGIC, _VERSION, _TRUSTED = 0xFEEDFEED, 2, 2
_PASSWORD, _SALT = "changeit", b"Mighty Aphrodite"
_MADE_MS = 1_577_836_800_000  # who lists them is shown a day
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def write(state: Path, id: str, certificate: bytes) -> None:
    """OSError."""
    place = state / layout.CONTAINERS / id / layout.CONTAINER_SHOWN
    if not (place / layout.TRUST).exists():
        place = state / layout.RUN / id
    _fill(place / layout.TRUST, certificate + b"\n" + _of_the_machine())
    _fill(place / layout.TRUST_JAVA, _of_the_machine_for_java().with_one(certificate))
    _fill(place / layout.TRUST_CHROMIUM, _for_chromium(certificate))


def _for_chromium(certificate: bytes) -> bytes:
    """Return the policy CACertificates: a list in base64 (chromeenterprise.google/policies, from version 128)."""
    binary = ssl.PEM_cert_to_DER_cert(certificate.decode("ascii"))
    return json.dumps({"CACertificates": [base64.b64encode(binary).decode("ascii")]}).encode()


def _fill(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        data = memoryview(content)
        while data:
            data = data[os.write(descriptor, data) :]
        os.ftruncate(descriptor, len(content))  # not O_TRUNC: ext4 would write it to the disk (auto_da_alloc)
    finally:
        os.close(descriptor)


@cache
def _of_the_machine() -> bytes:
    """Return what the gateway itself trusts. Empty if the machine has none: then programs trust the gateway alone."""
    named = ssl.get_default_verify_paths().cafile
    for place in (named, *_PLACES):
        try:
            if place:
                return Path(place).read_bytes()
        except OSError:
            continue
    return b""


@cache
def _of_the_machine_for_java() -> _JavaStore:
    return _JavaStore(_java_entries(_of_the_machine(), "machine"))


def _java_entries(pem: bytes, prefix: str) -> tuple[int, bytes]:
    """How many certificates there are in `pem`, and they as entries of a store."""
    made = [_op(f"{prefix}-{number}", each) for number, each in enumerate(_certificates(pem), 1)]
    return len(made), b"".join(made)


class _JavaStore:
    """Write trusted certificates as every Java reads them: JKS, which needs no Java. It holds no secret; its password
    is the one that all Java programs assume for such a store.

    Stores share their first entries, `most`, and differ in the last one: most of the work happens once.
    """

    def __init__(self, most: tuple[int, bytes]) -> None:
        count, entries = most
        self._head = struct.pack("!III", _MAGIC, _VERSION, count + 1) + entries
        self._keyed = hashlib.sha1(_PASSWORD.encode("utf-16-be") + _SALT + self._head, usedforsecurity=False)

    def with_one(self, certificate: bytes) -> bytes:
        """`certificate` is in PEM, and alone."""
        _, last = _java_entries(certificate, "sandbox")
        keyed = self._keyed.copy()
        keyed.update(last)
        return b"".join((self._head, last, keyed.digest()))


def _certificates(pem: bytes) -> list[bytes]:
    pieces = pem.decode("ascii", "replace").split(_BEGIN)[1:]
    return [ssl.PEM_cert_to_DER_cert(f"{_BEGIN}{piece.partition(_END)[0]}{_END}") for piece in pieces if _END in piece]


def _op(alias: str, certificate: bytes) -> bytes:
    head = struct.pack("!I", _TRUSTED) + _text(alias) + struct.pack("!Q", _MADE_MS) + _text("X.509")
    return head + struct.pack("!I", len(certificate)) + certificate


def _text(text: str) -> bytes:
    return struct.pack("!H", len(text)) + text.encode("ascii")
