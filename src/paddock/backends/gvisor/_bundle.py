"""What runsc is told: the machine that the sandbox's programs see (the OCI runtime specification), and its flags."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

from paddock.model import Limits

# What root inside has: the same as in a jail. gVisor's own kernel is who grants and checks them.
_CAPABILITIES = tuple(
    f"CAP_{name}"
    for name in ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETFCAP", "NET_BIND_SERVICE")
)
_TO_BE_RENAMED = "CAP_SYS_ADMIN"
"""What init has beside: it alone, and nobody whom it starts (`native/led.c`)."""
_TO_BECOME_ANOTHER = ("CAP_KILL", "CAP_SETGID", "CAP_SETUID")
_TO_NAME_IT = "CAP_DAC_OVERRIDE"  # /etc/hosts is that user's too
_MIB = 1 << 20
# From about then on a sentry opens files itself, unless it is told not to, and is told who serves which mount.
_WHO_SERVES_SINCE = 20240101


def saves(date: int) -> bool:
    """Tell whether it saves the state of all that runs inside, and starts from one."""
    return date >= _WHO_SERVES_SINCE


def flags(platform: str, date: int, *, one_id: bool, loopback: bool = False) -> list[str]:
    """For gofer and sentry alike, of a runsc of `date`. No namespaces, no new root, no groups: the jail is all that.

    `one_id`: all files are of the one id there is. The sentry opens them itself then, as far as the jail goes: a gofer
    that may do no more than he opens each new file a second time, and so makes none that is read-only (`git add`).

    `loopback`: nothing leads out, and the sentry has a network of its own, which it can save; else it is the jail's.

    `shared`: what is written is in the tree at once, where a snapshot finds it, and what the host changes is seen.
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


def served(date: int) -> list[str]:
    """Return what both are told of the root: files are the gofer's, with nothing above them."""
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
    """Return the OCI specification. The sandbox's root is that of the jail, which the gofer serves. `quotas`: the root
    is limited to its size. `occupied`: targets of mounts in it. `hidden`: directories of it that nobody inside sees."""
    mounts = [_mount("/proc", "proc"), _mount("/dev", "tmpfs")]
    mounts += [_mount(place, "tmpfs", "ro", "mode=0555", "size=4096") for place in hidden]
    for place, size in (("/dev/shm", limits.tmp_mib * _MIB // 2), ("/tmp", limits.tmp_mib * _MIB)):  # noqa: S108
        if not any(PurePosixPath(target).is_relative_to(place) for target in occupied):
            mounts.append(_mount(place, "tmpfs", "mode=1777", f"size={size}"))
    # A quota counts what is written, and not the holes of sparse files.
    largest = [] if quotas else [_limit("RLIMIT_FSIZE", limits.disk_mib * _MIB)]
    bounding = _CAPABILITIES if uid == 0 else ()
    # gVisor gives a first process that is not root no capability. So init is root even where all else is one user's,
    # who its agents become.
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


def cores(cpus: float) -> int:
    """How many the sandbox's programs see."""
    return max(1, min(math.ceil(cpus), os.cpu_count() or 1))


def _mount(place: str, kind: str, *options: str) -> dict[str, Any]:
    return {"destination": place, "type": kind, "source": kind, "options": ["nosuid", "nodev", *options]}


def _limit(name: str, value: int) -> dict[str, Any]:
    return {"type": name, "soft": value, "hard": value}
