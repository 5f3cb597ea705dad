"""May this ordinary user make user namespaces that are good for something? Found out by making one.

Distributions forbid it in three ways, and only trying shows what holds for the program that asks: Ubuntu's AppArmor
lets everybody make one and takes its capabilities away, unless the program has a profile that allows it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from paddock.backends.jail import _trials

_CODE = (
    "from paddock.linux import mounts, namespaces\n"
    "try:\n"
    "    namespaces.unshare(namespaces.NEWUSER | namespaces.NEWNS)\n"
    "    mounts.make_all_private()\n"
    "except OSError as error:\n"
    "    sys.exit(str(error.strerror))\n"
)
_SWITCHES = (
    ("kernel.unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    ("user.max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=10000"),
)
_APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"


def refused() -> str | None:
    """None, or why not and the command that allows it."""
    suspects = [(name, value) for name, value, _ in _SWITCHES if _read(name) == value]
    restricted = _read(_APPARMOR) == "1"
    if not suspects and not restricted:
        return None  # nothing that is known to stand in the way: no need to spend a process on it
    why = _trials.attempt(_CODE)
    if why is None:
        return None
    for name, value, command in _SWITCHES:
        if (name, value) in suspects:
            return f"ordinary users may make no user namespaces here ({why}): {name}={value}; as root: {command}"
    return f"AppArmor forbids user namespaces to programs without a profile ({why}); as root: {apparmor_command()}"


def profile() -> str:
    """AppArmor's profile for the Python that runs us: it may make user namespaces, and is not confined otherwise."""
    program = os.path.realpath(sys.executable)
    return (
        f"abi <abi/4.0>,\ninclude <tunables/global>\nprofile paddock {program} flags=(unconfined) {{\n  userns,\n}}\n"
    )


def apparmor_command() -> str:
    """One command that installs the profile and puts it into force."""
    lines = " ".join(f"'{line}'" for line in profile().splitlines())
    path = "/etc/apparmor.d/paddock"
    return f"printf '%s\\n' {lines} > {path} && apparmor_parser -r {path}"


def _read(name: str) -> str | None:
    try:
        return Path("/proc/sys", *name.split(".")).read_text().strip()
    except OSError:
        return None
