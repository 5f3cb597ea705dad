"""Try what sandboxes need of this machine, in a separate process.

Distributions forbid user namespaces to ordinary users in three ways, and only trying shows which holds for this
program. Ubuntu's AppArmor lets every program make one and takes its capabilities away, unless it has a profile.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from paddock.backends._checks import EGRESS, missing, ok
from paddock.model import Check
from paddock.storage.commands import attempt

_EXITS = (
    "from paddock.supervisor import _exits;from paddock.linux import namespaces,netlink,nft,routes;"
    "namespaces.unshare(namespaces.NEWUSER|namespaces.NEWNET);netlink.set_loopback_up();"
    "nft.load(_exits.rules());routes.keep_everything(version_6=False)"
)
_POOL = "from paddock.supervisor import pool;pool.try_pool(sys.argv[2],int(sys.argv[3]))"
_USERNS = (
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
_PROC = (
    "import os\n"
    "from paddock.linux import mounts, namespaces\n"
    "namespaces.unshare(namespaces.NEWUSER | namespaces.NEWNS | namespaces.NEWPID)\n"
    "pid = os.fork()\n"
    "if pid:\n"
    "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    "mounts.fs_mount('proc')\n"
)
UNFILTERED = (
    "start the container with --security-opt seccomp=unconfined (Docker), or its pod with"
    " seccompProfile: {type: Unconfined} (Kubernetes)"
)
_UNMASKED = (
    "start it with --security-opt systempaths=unconfined (Docker), --security-opt unmask=ALL (Podman), or its pod with"
    " procMount: Unmasked (Kubernetes)"
)
_APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"


def exits() -> Check:
    """Say whether sandboxes can have the gateway as their only network access here."""
    if (said := attempt(_EXITS)) is None:
        return ok("jail", "egress", EGRESS)
    fix = "a kernel with nf_tables, nft_redir, nft_reject_inet, nft_limit and nft_ct"
    return missing("jail", "egress", f"no sandbox with a policy can be made: {said}", fix)


def pool(state_dir: Path, supervisor: int) -> Check:
    """Check that the file system of a sandbox can be mounted in the pool that the process `supervisor` holds."""
    if (said := attempt(_POOL, str(state_dir), str(supervisor))) is None:
        return ok("jail", "file system", "one was mounted in the pool and removed")
    fix = "make room on the disk below (df -h), then paddock doctor --storage"
    return missing("jail", "file system", f"no sandbox can be made: {said}", fix)


def refused() -> str | None:
    """None, or why not and the command that allows it."""
    suspects = [(name, value) for name, value, _ in _SWITCHES if _read(name) == value]
    restricted, filtered = _read(_APPARMOR) == "1", "Seccomp:\t0\n" not in Path("/proc/self/status").read_text()
    why = attempt(_USERNS) if suspects or restricted or filtered else None  # else nothing is known to stand in the way
    if why is None:
        return _masked()
    for name, value, command in _SWITCHES:
        if (name, value) in suspects:
            return f"ordinary users may make no user namespaces here ({why}): {name}={value}; as root: {command}"
    if not restricted:
        also = f"; it covers parts of /proc too: {_UNMASKED}" if _is_covered() else ""
        return f"a seccomp filter forbids user namespaces ({why}): probably a container's; {UNFILTERED}{also}"
    return f"AppArmor forbids user namespaces to programs without a profile ({why}); as root: {apparmor_command()}"


def _masked() -> str | None:
    """Say what to do where a container's engine has covered parts of /proc.

    The kernel then lets no user namespace mount another /proc, which would show them (fs/namespace.c,
    mount_too_revealing).
    """
    if not _is_covered() or attempt(_PROC) is None:
        return None
    return f"this container covers parts of /proc, so no sandbox can have a /proc of its own; {_UNMASKED}"


def _is_covered() -> bool:
    from paddock.linux import mountinfo

    covered = (info for info in mountinfo.read() if info.mount_point.startswith(b"/proc/"))
    return any(info.mount_point != b"/proc/sys/fs/binfmt_misc" for info in covered)


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
