"""Can this machine hold jails, what will hold in them, and what would mend what does not."""

from __future__ import annotations

import os
from pathlib import Path

from paddock.backends._base import Capabilities
from paddock.model import Check, Limit

_ENFORCEABLE = (Limit.MEMORY, Limit.PROCESSES, Limit.DISK, Limit.INODES)
_SWITCHES = {
    "/proc/sys/kernel/unprivileged_userns_clone": "1",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "0",
}


def unusable() -> str | None:
    """None, or one sentence: why no jail can be made here and what would change that."""
    if os.uname().sysname != "Linux":
        return "jails need Linux"
    if os.uname().machine not in ("x86_64", "aarch64"):
        return f"jails know the system calls of x86_64 and aarch64, not of {os.uname().machine}"
    if not Path("/proc/self/ns/user").exists():
        return "this kernel has no user namespaces (CONFIG_USER_NS)"
    if os.getuid() == 0:
        return None
    for switch, wanted in _SWITCHES.items():
        name = switch.removeprefix("/proc/sys/").replace("/", ".")
        if (value := _read(switch)) not in (None, wanted):
            return (
                f"ordinary users may make no user namespaces here: {name}={value}; sysctl -w {name}={wanted} allows it"
            )
    if _read("/proc/sys/user/max_user_namespaces") == "0":
        return "user namespaces are switched off; sysctl -w user.max_user_namespaces=10000 allows them"
    return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def checks(capabilities: Capabilities) -> tuple[Check, ...]:
    """Lines for `doctor`."""
    from paddock.linux import landlock

    reason = unusable()
    if reason is not None:
        return (Check(area="level", name="jail", status="missing", detail=reason),)
    lines = [Check(area="level", name="jail", status="ok", detail="namespaces, seccomp, Landlock")]
    abi = landlock.kernel_abi()
    lines.append(
        Check(
            area="jail",
            name="landlock",
            status="ok" if abi >= 6 else "weak",
            detail=landlock.level(abi),
        )
    )
    for limit in _ENFORCEABLE:
        held = limit in capabilities.enforced
        lines.append(
            Check(
                area="limits",
                name=limit.value,
                status="ok" if held else "weak",
                detail="enforced" if held else _instead(limit),
                fix=None if held else "run paddock as root",
            )
        )
    lines.append(
        Check(
            area="jail",
            name="spare",
            status="ok",
            detail="while sandboxes are made, one is kept ready ahead: about 3 MB, runs nothing",
        )
    )
    if os.getuid() == 0:
        lines += [Check(area="limits", name="cgroup", status="weak", detail=text) for text in _missing_controllers()]
    return tuple(lines)


def _missing_controllers() -> tuple[str, ...]:
    from paddock.linux import cgroups

    base = cgroups.Base.open("paddock_probe")
    try:
        return base.missing()
    finally:
        base.remove()


def _instead(limit: Limit) -> str:
    return {
        Limit.MEMORY: "not enforced for the sandbox: no cgroup; each process is limited by RLIMIT_DATA",
        Limit.PROCESSES: "enforced by RLIMIT_NPROC of the sandbox's own user namespace, not counted",
        Limit.DISK: "not enforced for the sandbox: no quota; each file is limited by RLIMIT_FSIZE",
        Limit.INODES: "not enforced",
    }[limit]
