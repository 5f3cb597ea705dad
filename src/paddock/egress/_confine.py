"""What the gateway's process gives up before it serves: it reads what sandboxes send, and holds secrets."""

from __future__ import annotations

import os
import resource
import ssl
import sys
from pathlib import Path

from paddock.linux import caps, landlock, prctl, seccomp, seccomp_profile

_OF_THE_RESOLVER = ("resolv.conf", "hosts", "nsswitch.conf", "gai.conf", "host.conf", "services", "localtime")
_OF_CERTIFICATES = ("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/usr/share/ca-certificates")


def confine(*, readable: tuple[Path, ...], writable: tuple[Path, ...]) -> tuple[str, ...]:
    """No core, no tracer, no capability, no program, no file beyond what is needed. What this kernel can't give, in
    words."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl.set_dumpable(False)
    prctl.set_no_new_privileges()
    if os.geteuid() == 0:
        caps.drop_bounding()
    caps.drop_all()
    missing: list[str] = []
    places = (*_code(), *_system(), *(str(path) for path in readable))
    if not landlock.restrict_files(landlock.kernel_abi(), readable=places, writable=(*map(str, writable), "/dev/null")):
        missing.append("this kernel has no Landlock: the gateway could read every file of its user")
    seccomp.Filter(seccomp_profile.build(os.uname().machine, foreign_targets=False)).install()
    return tuple(missing)


def _code() -> tuple[str, ...]:
    """Where modules are loaded from, which may be late."""
    return (*filter(os.path.isabs, sys.path), sys.prefix, sys.base_prefix, "/usr", "/lib", "/lib64", "/dev")


def _system() -> tuple[str, ...]:
    links = tuple(os.path.realpath(f"/etc/{name}") for name in _OF_THE_RESOLVER)
    found = ssl.get_default_verify_paths()
    given = (found.cafile, found.capath, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    named = tuple(path for path in given if path)
    return (*(f"/etc/{name}" for name in _OF_THE_RESOLVER), *links, *_OF_CERTIFICATES, *named)
