"""May this ordinary user make user namespaces that are good for something? Found out by making one.

Distributions forbid it in three ways, and only trying shows what holds for the program that asks: Ubuntu's AppArmor
lets everybody make one and takes its capabilities away, unless the program has a profile that allows it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_SECONDS = 30
_CODE = (
    "import sys\n"
    "sys.path.append(sys.argv[1])\n"
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
    why = _try()
    if why is None:
        return None
    for name, value, command in _SWITCHES:
        if (name, value) in suspects:
            return f"ordinary users may make no user namespaces here ({why}): {name}={value}; as root: {command}"
    return f"AppArmor forbids user namespaces to programs without a profile ({why}); as root: {apparmor_command()}"


def _try() -> str | None:
    import subprocess

    source = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _CODE, source],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or ["the probe died"])[-1]


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
