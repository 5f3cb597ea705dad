"""What programs inside take for true: the machine's certificates and the sandbox's own authority, in one file.

The keeper has put the file where programs look for it (`keeper/_trust_places.py`); what is in it is written here, in
place, for whoever has it open.
"""

from __future__ import annotations

import os
import ssl
from functools import cache
from pathlib import Path

from paddock.keeper import layout

_PLACES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def write(state: Path, id: str, certificate: bytes) -> None:
    """OSError."""
    path = state / layout.RUN / id / layout.TRUST
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        data = memoryview(certificate + b"\n" + _of_the_machine())
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
