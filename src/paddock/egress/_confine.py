"""What the gateway's process gives up before it serves: it reads what sandboxes send, and holds secrets."""

from __future__ import annotations

import os
import resource
import ssl
from pathlib import Path

from paddock.linux import confine as process
from paddock.linux import seccomp, seccomp_profile

_OF_THE_RESOLVER = ("resolv.conf", "hosts", "nsswitch.conf", "gai.conf", "host.conf", "services", "localtime")
_OF_CERTIFICATES = ("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/usr/share/ca-certificates")


def confine(*, readable: tuple[Path, ...], writable: tuple[Path, ...]) -> tuple[str, ...]:
    """No core, no tracer, no capability, no program, no file beyond what is needed. What this kernel can't give, in
    words."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    calls = seccomp.Filter(seccomp_profile.build(os.uname().machine, foreign_targets=False))
    places = (*process.code(), *_system(), *map(str, readable))
    if process.confine(readable=places, writable=(*map(str, writable), "/dev/null"), calls=calls):
        return ()
    return ("this kernel has no Landlock: the gateway could read every file of its user",)


def _system() -> tuple[str, ...]:
    links = tuple(os.path.realpath(f"/etc/{name}") for name in _OF_THE_RESOLVER)
    found = ssl.get_default_verify_paths()
    given = (found.cafile, found.capath, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    named = tuple(path for path in given if path)
    return (*(f"/etc/{name}" for name in _OF_THE_RESOLVER), *links, *_OF_CERTIFICATES, *named)
