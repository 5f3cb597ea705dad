"""What an engine is asked for: as little as a sandbox needs, whatever the engine's own defaults are."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

from paddock.backends._base import SandboxPlan
from paddock.storage._kit import COMMAND, PLACE

HOST = "/.paddock-host"
"""Where the directory is seen in which pid 1 calls the host."""
OWNER = "paddock.owner"
SANDBOX = "paddock.sandbox"
GUEST_BYTES = 48 << 20
GUEST_PROCESSES = 2
"""The guest's own, beside what the caller asked for: pid 1 and the agent of the default user."""
_MIB = 1 << 20
_MOST_PROCESSES = 32768
# Of root inside. No power over the network, over mounts, over other people's processes or over the machine.
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")


def options(
    plan: SandboxPlan, image: str, *, kit: Path, birth: Path, owner: str, usr: tuple[str, ...], held: frozenset[str]
) -> Any:
    """The body of `POST /containers/create`. `usr` are directories of the machine's that are seen, read-only; `held` is
    what control groups limit here. Where they don't, at least no process may have more memory than all together."""
    limits = plan.spec.limits
    memory = limits.memory_mib * _MIB + GUEST_BYTES
    return {
        "Image": image,
        "Entrypoint": list(COMMAND),
        "Cmd": [f'{{"birth":"{HOST}/birth.sock"}}'],
        "Hostname": plan.hostname[:63],
        "User": "0:0",
        "WorkingDir": "/",
        "Labels": {OWNER: owner, SANDBOX: plan.id, "paddock.incarnation": str(plan.incarnation)},
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
            "Memory": memory,
            "MemorySwap": memory + limits.swap_mib * _MIB,
            "PidsLimit": limits.processes + GUEST_PROCESSES,
            "NanoCpus": max(10_000_000, round(limits.cpus * 1e9)),
            "Ulimits": _ulimits(plan, memory if "memory" not in held else None),
            "ShmSize": limits.tmp_mib * _MIB,
            "Tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={limits.tmp_mib * _MIB}"},  # noqa: S108 (inside)
            "Mounts": [
                _shown(kit, PLACE),
                _shown(birth, HOST),
                *(_shown(Path(path), path) for path in usr),
            ],
            "LogConfig": {"Type": "none"},
            "RestartPolicy": {"Name": "no"},
            "AutoRemove": False,
        },
    }


def _shown(source: Path, target: str) -> Any:
    """One directory, without what is mounted below it."""
    how = {"Propagation": "rprivate", "NonRecursive": True}
    return {"Type": "bind", "Source": os.fspath(source), "Target": target, "ReadOnly": True, "BindOptions": how}


def _ulimits(plan: SandboxPlan, data: int | None) -> list[Any]:
    limits = plan.spec.limits
    # Podman would ask for a million by itself, which is refused to one that lacks CAP_SYS_RESOURCE; its service allows
    # itself no more than these. What holds is the ceiling of the group.
    own = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    processes = _MOST_PROCESSES if own < 0 else min(own, _MOST_PROCESSES)
    values = {
        "nofile": limits.open_files,
        "core": 0,
        "memlock": 8 * _MIB,
        "fsize": limits.disk_mib * _MIB,
        "nproc": processes,
        **({} if data is None else {"data": data}),
    }
    return [{"Name": name, "Soft": value, "Hard": value} for name, value in values.items()]
