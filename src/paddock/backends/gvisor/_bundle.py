"""The input of runsc: the machine for the sandbox's programs (the OCI runtime specification), and its flags."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

from paddock.linux.seccomp import ALLOW, AUDIT_ARCH, Case, Cases, Compare, Verdict, compile, fail_with
from paddock.linux.syscall_names import numbers
from paddock.model import Limits

# The capabilities of root inside, the same as in a jail. gVisor's own kernel grants and checks them.
_CAPABILITIES = tuple(
    f"CAP_{name}"
    for name in ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETFCAP", "NET_BIND_SERVICE")
)
_TO_BE_RENAMED = "CAP_SYS_ADMIN"
"""An additional capability of init. It doesn't pass it to its children (`native/init_trunk.c`)."""
_TO_BECOME_ANOTHER = ("CAP_KILL", "CAP_SETGID", "CAP_SETUID")
_TO_NAME_IT = "CAP_DAC_OVERRIDE"  # /etc/hosts is that user's too
_MIB = 1 << 20
_ATTRIBUTES = ("fsetxattr", "fgetxattr", "flistxattr", "fremovexattr")
_SET_CPUID = 0x1012  # ARCH_SET_CPUID, asm/prctl.h
# Since about that date a sentry opens files itself, unless a flag forbids it, and needs the server of each mount.
_WHO_SERVES_SINCE = 20240101


def saves(date: int) -> bool:
    """Tell whether it saves the state of all that runs inside, and starts from one."""
    return date >= _WHO_SERVES_SINCE


def flags(platform: str, date: int, *, one_id: bool, loopback: bool = False) -> list[str]:
    """Return the flags of gofer and sentry, of a runsc of `date`.

    It has no namespaces, new roots or groups, because the jail has them.

    `one_id`: all files have the only id there is. The sentry then opens them itself, within the jail's limits. A gofer
    without more rights opens each new file a second time, and so can't make a read-only one (`git add`). `loopback`:
    the sentry has a separate network without a route, which it can save. Otherwise it has the jail's. `shared`: writes
    are in the tree at once, where a snapshot finds them, and changes of the host show inside.
    """
    later = [
        f"--directfs={str(one_id).lower()}",  # where there are more, the sentry opens none
        "--host-fifo=none",
    ]
    return [
        "--TESTONLY-unsafe-nonroot",
        f"--platform={platform}",
        f"--network={'none' if loopback else 'host'}",
        "--ignore-cgroups",
        "--file-access=shared",
        "--file-access-mounts=shared",
        "--overlay2=none",
        "--host-uds=none",
        "--root=/",
        *(later if date >= _WHO_SERVES_SINCE else ()),
    ]


def filter() -> str:
    """Return the filter of gofer and sentry, in hexadecimal: calls that do nothing, with an error or 0 as their result.

    The gofer changes its root to the directory that it serves. That is already "/", and the jail forbids the call. For
    symbolic links the gofer reads attributes in a way that fails, and `ls -l` reports that for each. It reports nothing
    if attributes don't exist. A call of arch_prctl(2), which x86_64 alone has, makes the CPUID instruction fault. It
    gets the error of a processor without that feature, so the sentry lets programs execute CPUID. Each loader does so
    some 40 times. Each time would be a fault in the sentry, with the same answer. Among the filters that block a call,
    the newest decides the result.
    """
    machine = os.uname().machine
    calls = numbers(machine)
    verdicts: dict[int, Verdict] = {calls[name]: fail_with(errno.EOPNOTSUPP) for name in _ATTRIBUTES}
    verdicts[calls["chroot"]] = fail_with(0)
    if "arch_prctl" in calls:
        faults = Case((Compare(0, _SET_CPUID),), fail_with(errno.ENODEV))
        verdicts[calls["arch_prctl"]] = Cases((faults,), ALLOW)
    return compile(AUDIT_ARCH[machine], verdicts, ALLOW).hex()


def served(date: int) -> list[str]:
    """Return the flags of both about the root: the gofer serves files, without an overlay."""
    return ["--gofer-mount-confs=lisafs:none"] if date >= _WHO_SERVES_SINCE else []


def specification(
    *,
    argv: tuple[str, ...],
    hostname: str,
    uid: int,
    limits: Limits,
    quotas: bool = False,
    occupied: Iterable[str] = (),
    hidden: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the OCI specification.

    The sandbox's root is that of the jail, which the gofer serves.

    `quotas`: the root has a size limit. `occupied`: targets of mounts in it. `hidden`: directories of it that no
    program inside sees.
    """
    mounts = [_mount("/proc", "proc"), _mount("/dev", "tmpfs")]
    mounts += [_mount(place, "tmpfs", "ro", "mode=0555", "size=4096") for place in hidden]
    for place, size in (("/dev/shm", limits.tmp_mib * _MIB // 2), ("/tmp", limits.tmp_mib * _MIB)):  # noqa: S108
        if not any(PurePosixPath(target).is_relative_to(place) for target in occupied):
            mounts.append(_mount(place, "tmpfs", "mode=1777", f"size={size}"))
    # A quota counts written blocks, and not the holes of sparse files.
    largest = [] if quotas else [_limit("RLIMIT_FSIZE", limits.disk_mib * _MIB)]
    bounding = _CAPABILITIES if uid == 0 else ()
    # gVisor gives a first process capabilities only if it is root. So init is root even if all else belongs to one
    # user, which its agents become.
    first = (_TO_BE_RENAMED, *(bounding or (*_TO_BECOME_ANOTHER, _TO_NAME_IT)))
    return {
        "ociVersion": "1.0.2",
        "hostname": hostname,
        "root": {"path": "/"},
        "process": {
            "user": {"uid": 0, "gid": 0},
            "cwd": "/",
            "args": argv,
            "env": [],
            "noNewPrivileges": True,
            "capabilities": {"bounding": bounding, "effective": first, "permitted": first},
            "rlimits": [
                _limit("RLIMIT_NOFILE", limits.open_files),
                _limit("RLIMIT_NPROC", limits.processes),
                _limit("RLIMIT_CORE", 0),
                *largest,
            ],
        },
        "mounts": mounts,
        "linux": {},
    }


def _mount(place: str, kind: str, *options: str) -> dict[str, Any]:
    return {"destination": place, "type": kind, "source": kind, "options": ["nosuid", "nodev", *options]}


def _limit(name: str, value: int) -> dict[str, Any]:
    return {"type": name, "soft": value, "hard": value}
