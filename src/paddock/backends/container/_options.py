"""The settings of a container for an engine: only the rights that a sandbox needs, independent of the engine's
defaults.
"""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from paddock.backends.base import SandboxPlan
from paddock.backends.guest import program
from paddock.linux import masks, sizes
from paddock.model import Limits

HOST = "/.paddock-host"
"""The path inside of the directory through which pid 1 calls the host."""
GUEST = "/.paddock"
"""The path inside of the directory with the guest's program."""
OWNER = "paddock.owner"
SANDBOX = "paddock.sandbox"
_PROGRAM = "paddock-guest"
GUEST_BYTES = 48 << 20
GUEST_PROCESSES = 2
"""The guest's own processes, in addition to the caller's limit: pid 1 and the agent of the default user."""
_MIB = 1 << 20
_ENGINES = ("cpuinfo", "loadavg", "meminfo", "stat")
_MOST_PROCESSES = 32768
# Capabilities of root inside. They give no power over the network, mounts, other users' processes or the machine.
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")


def options(
    plan: SandboxPlan,
    image: str,
    *,
    guest: Path,
    guest_start: Path,
    owner: str,
    shown: Iterable[tuple[Path, str]],
    held: frozenset[str],
) -> Any:
    """Return the body of `POST /containers/create`.

    `shown` are additional read-only directories of the machine.

    `held` are the limits that control groups enforce here. Without the one for memory, each process has that limit.
    """
    limits = plan.spec.limits
    memory = limits.memory_mib * _MIB + GUEST_BYTES
    return {
        "Image": image,
        "Entrypoint": [f"{GUEST}/{_PROGRAM}"],
        "Cmd": [],
        "Hostname": plan.hostname[:63],
        "User": "0:0",
        "WorkingDir": "/",
        "Labels": {OWNER: owner, SANDBOX: plan.id, "paddock.instance_id": str(plan.instance_id)},
        "NetworkDisabled": True,
        "StopTimeout": 0,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "NetworkMode": "none",
            "CapDrop": ["ALL"],
            "CapAdd": list(CAPABILITIES),
            "SecurityOpt": ["no-new-privileges"],
            "Privileged": False,
            "IpcMode": "private",
            "CgroupnsMode": "private",
            # Ports below 1024 for every user: the network is private. That is Docker's default, not Podman's.
            "Sysctls": {"net.ipv4.ip_unprivileged_port_start": "0"},
            "Memory": memory,
            "MemorySwap": memory + limits.swap_mib * _MIB,
            "PidsLimit": limits.processes + GUEST_PROCESSES,
            "NanoCpus": max(10_000_000, round(limits.cpus * 1e9)),
            "Ulimits": _ulimits(resource_limits(plan, held)),
            "ShmSize": limits.tmp_mib * _MIB,
            "Tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={limits.tmp_mib * _MIB}"},  # noqa: S108 (inside)
            "Mounts": [
                _shown(guest, GUEST),
                _shown(guest_start, HOST),
                *(_shown(path, target) for path, target in shown),
            ],
            "LogConfig": {"Type": "none"},
            "RestartPolicy": {"Name": "no"},
            "AutoRemove": False,
        },
    }


def _shown(source: Path, target: str) -> Any:
    """Return the mount of one directory, without the mounts below it."""
    how = {"Propagation": "rprivate", "NonRecursive": True}
    return {"Type": "bind", "Source": os.fspath(source), "Target": target, "ReadOnly": True, "BindOptions": how}


def resource_limits(plan: SandboxPlan, held: frozenset[str]) -> dict[str, int]:
    """Return the limits of each process, by the engines' names for them."""
    limits = plan.spec.limits
    values = {
        "nofile": limits.open_files,
        "core": 0,
        "memlock": 8 * _MIB,
        "fsize": limits.disk_mib * _MIB,
    }
    return values if "memory" in held else {**values, "data": limits.memory_mib * _MIB + GUEST_BYTES}


def _ulimits(limits: dict[str, int]) -> list[Any]:
    # Podman would request a million by itself, which fails without CAP_SYS_RESOURCE. Its service itself has no more
    # than these. The limit of the group is the effective one.
    own = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    processes = _MOST_PROCESSES if own < 0 else min(own, _MOST_PROCESSES)
    values = {**limits, "nproc": processes}
    return [{"Name": name, "Soft": value, "Hard": value} for name, value in values.items()]


def guest_directory(directory: Path) -> Path:
    """Return the directory in which the guest's program is alone, for an engine to show. NotConfigured.

    It is `directory/guest/<digest>`, made if it is not there: whole or not at all.
    """
    source = program()
    place = directory / "guest" / hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    if place.is_dir():
        return place
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = place.with_suffix(".new")
    shutil.rmtree(scratch, ignore_errors=True)  # a killed builder's
    scratch.mkdir(mode=0o755)
    shutil.copyfile(source, scratch / _PROGRAM)
    (scratch / _PROGRAM).chmod(0o555)
    scratch.chmod(0o755)  # with any umask
    scratch.rename(place)
    return place


def told(place: Path, limits: Limits, processors: sizes.Processors) -> tuple[int, ...] | None:
    """Write files about a container's resources, which cover ones of /proc and /sys, into the new directory `place`.

    Return its processors, or None for all of them.
    """
    cpus, all_of_them = processors.choose(limits.cpus)
    possible = sizes.possible()
    files = sizes.proc_files(limits.memory_mib * _MIB, limits.swap_mib * _MIB, cpus, all_of_them=all_of_them)
    place.mkdir(mode=0o755)
    sizes.lay(os.fspath(place), files | sizes.system(cpus, possible) | masks.contents(), possible, (masks.NOTHING,))
    return None if all_of_them else cpus


def lying_over(place: Path) -> dict[str, str]:
    """Return the names in `place` of the files and directories that cover ones of a container."""
    over = {f"proc/{name}": instead for name, instead in masks.there(of_root=True).items()}
    over |= {f"proc/{name}": name for name in ("cpuinfo", "meminfo", "stat") if (place / name).exists()}
    return over | {"sys": "sys"}


def engines_own(place: Path) -> list[tuple[Path, str]]:
    """Return the files of `place` that engines can mount over /proc.

    Without a namespace entry these are the only ones.
    """
    return [(place / name, f"/proc/{name}") for name in _ENGINES if (place / name).exists()]
