"""What programs inside take for true: the machine's certificates and the sandbox's own authority, in one file; in
another, for Java; and the authority alone in a policy, for Chromium, which knows the others itself.

The backend has put the files where programs look for them (`keeper/_trust_places.py`); what is in them is written here,
in place, for whoever has them open.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
from functools import cache
from pathlib import Path

from paddock.keeper import layout

from . import _java_trust

_PLACES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def write(state: Path, id: str, certificate: bytes) -> None:
    """OSError."""
    place = state / layout.CONTAINERS / id / layout.CONTAINER_SHOWN
    if not (place / layout.TRUST).exists():
        place = state / layout.RUN / id
    _fill(place / layout.TRUST, certificate + b"\n" + _of_the_machine())
    _fill(place / layout.TRUST_JAVA, _of_the_machine_for_java().with_one(certificate, "sandbox"))
    _fill(place / layout.TRUST_CHROMIUM, _for_chromium(certificate))


def _for_chromium(certificate: bytes) -> bytes:
    """The policy CACertificates: a list in base64 (chromeenterprise.google/policies, from version 128)."""
    binary = ssl.PEM_cert_to_DER_cert(certificate.decode("ascii"))
    return json.dumps({"CACertificates": [base64.b64encode(binary).decode("ascii")]}).encode()


def _fill(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        data = memoryview(content)
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


@cache
def _of_the_machine() -> bytes:
    """What the gateway itself trusts. Nothing where the machine has none: then nothing is trusted but the gateway."""
    named = ssl.get_default_verify_paths().cafile
    for place in (named, *_PLACES):
        try:
            if place:
                return Path(place).read_bytes()
        except OSError:
            continue
    return b""


@cache
def _of_the_machine_for_java() -> _java_trust.Store:
    return _java_trust.Store(_java_trust.entries(_of_the_machine(), "machine"))
