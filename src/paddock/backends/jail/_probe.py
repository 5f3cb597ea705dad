"""Find out whether this machine can hold jails, which limits it enforces, and what would fix the rest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paddock.backends._checks import SLEEP, missing, ok, weak
from paddock.backends.base import Capabilities
from paddock.linux import subordinate_ids
from paddock.model import Check, Limit
from paddock.supervisor.layout import DEFAULT_SPARES

LIMITS = (Limit.MEMORY, Limit.PROCESSES, Limit.DISK, Limit.INODES)
_NO_SYS_ADMIN = "this process is root and may make no namespaces: probably the seccomp filter of a container"
_HOW_TO_DELEGATE = "docs/howto/ordinary-user.md#get-hard-limits"
_OF_CGROUPS = (Limit.MEMORY, Limit.PROCESSES)
_ENFORCED = {
    Limit.MEMORY: "the memory cgroup",
    Limit.PROCESSES: "the pids cgroup",
    Limit.DISK: "btrfs quota",
    Limit.INODES: "the supervisor, who counts by btrfs",
}
_WATCHED = {
    Limit.MEMORY: "watched, not hard: four times a second the supervisor adds up processes and unix sockets; over the"
    " limit it ends the largest process, then the sandbox. It doesn't count shared memory that was unmapped, nor"
    " buffers of files, pipes and TCP. Hard: RLIMIT_DATA for each process, 64 MiB of System V IPC, tmp_mib for /tmp and"
    " /dev/shm; memfd_create is refused",
    Limit.PROCESSES: "watched, not hard; RLIMIT_NPROC limits each user inside",
    Limit.DISK: "watched, not hard: the supervisor walks through the tree; RLIMIT_FSIZE limits each file",
    Limit.INODES: "watched, not hard: the supervisor walks through the tree",
}
_NOTHING = {
    Limit.MEMORY: "not enforced for the sandbox: no cgroup. Hard: RLIMIT_DATA for each process, 64 MiB of System V IPC,"
    " tmp_mib for /tmp and /dev/shm; memfd_create is refused",
    Limit.PROCESSES: "not enforced for the sandbox: no cgroup; RLIMIT_NPROC limits each user inside",
    Limit.DISK: "not enforced for the sandbox: no quota; RLIMIT_FSIZE limits each file",
    Limit.INODES: "not enforced",
}


def unusable() -> str | None:
    """Return None, or one sentence: why no jail can be made here, and what would change that."""
    if os.uname().sysname != "Linux":
        return "jails need Linux"
    if os.uname().machine not in ("x86_64", "aarch64"):
        return f"jails know the system calls of x86_64 and aarch64, not of {os.uname().machine}"
    if not Path("/proc/self/ns/user").exists():
        return "this kernel has no user namespaces (CONFIG_USER_NS)"
    if os.getuid() == 0:
        from paddock.linux import caps

        return None if caps.get().effective >> caps.SYS_ADMIN & 1 else _NO_SYS_ADMIN
    from paddock.backends.jail import _trials

    return _trials.refused()


def remedy(reason: str) -> str | None:
    """Return what to do about an answer of `unusable`, unless the answer says it."""
    from paddock.backends.jail import _trials

    return _trials.UNFILTERED if reason == _NO_SYS_ADMIN else None


def checks(capabilities: Capabilities, facts: Mapping[str, Any], state_dir: Path) -> tuple[Check, ...]:
    """Return lines for `doctor`. `facts` come from the supervisor; they are empty if none could be started."""
    from paddock.backends.jail import _trials
    from paddock.linux import landlock

    reason = unusable()
    if reason is not None:
        return (missing("level", "jail", reason, remedy(reason)),)
    abi = landlock.kernel_abi()
    lines = [
        ok("level", "jail", "namespaces, seccomp, Landlock"),
        (ok if abi >= 6 else weak)("jail", "landlock", landlock.level(abi)),
        _trials.exits(),
    ]
    if "pid" in facts:
        lines.append(_trials.pool(state_dir, facts["pid"]))
    if not facts.get("hostnames", True):
        unnamed = "sethostname is refused here: a sandbox without a name sees the machine's, and none can have a name"
        lines.append(weak("jail", "hostname", unnamed, subordinate_ids.as_root()))
    sealed = "runs from sealed memory"
    if not facts.get("program_in_memory", True):
        sealed = "runs from a file system that is mounted nowhere: vm.memfd_noexec or a security module forbids memory"
    lines.append(ok("jail", "program", sealed))
    lines += guarantees(capabilities, root=os.getuid() == 0, cpus="cpu" in facts.get("cgroups", ()))
    absent = tuple(facts.get("missing", ()))
    if absent and not facts["cgroups"]:  # one reason says it for all
        absent = (next((text for text in absent if text.startswith("memory")), absent[0]),)
    fix = _cgroup_fix() if os.getuid() else None
    lines += [weak("limits", "cgroup", text, fix) for text in absent]
    spares = f"while sandboxes are made, {DEFAULT_SPARES} are kept ready ahead: about 3 MB each, run nothing"
    return (*lines, ok("jail", "spares", spares), ok("jail", "sleep", SLEEP))


def guarantees(capabilities: Capabilities, *, root: bool, cpus: bool) -> list[Check]:
    """One line for each thing that only some machines or users can enforce: `weak`, and what holds instead, or `ok`."""
    from paddock.linux import mountinfo

    lines = [*(_limit(limit, capabilities, root=root) for limit in LIMITS), _cpus(cpus, root=root)]
    if Limit.MEMORY in capabilities.enforced:
        lines.append(ok("limits", "sockets", "enforced"))
    else:
        uncounted = "not enforced: no cgroup; the machine pays for the buffers of sockets"
        lines.append(weak("limits", "sockets", uncounted, None if root else _cgroup_fix()))
    if not root:
        counts = "inotify watches and queued signals inside count with your own; a sandbox has at most a quarter"
        lines += (_ids(capabilities), weak("jail", "tables", counts, subordinate_ids.as_root()))
        if any(info.mount_point.startswith(b"/usr/") for info in mountinfo.read()):
            told = "something is mounted below /usr: sandboxes can watch which programs of it are started"
            lines.append(weak("jail", "activity", told))
    return lines


def _ids(capabilities: Capabilities) -> Check:
    """Check an ordinary user's ids."""
    own = "the user inside has your uid outside: only the namespaces separate the two"
    if capabilities.root_user:
        others = "; root and other users inside have subordinate ids of yours, the same in all your sandboxes"
        return weak("jail", "ids", own + others, subordinate_ids.as_root())
    granted = subordinate_ids.granted()
    if isinstance(granted, str):
        why, fix = granted, subordinate_ids.remedy()
    else:
        why, fix = "ask for them in a new state directory", "subordinate_ids = true in its config.toml"
    return weak("jail", "ids", f"{own}; there is no root and no other user inside, without subordinate ids: {why}", fix)


def _limit(limit: Limit, capabilities: Capabilities, *, root: bool) -> Check:
    if limit in capabilities.enforced:
        return ok("limits", limit.value, f"enforced by {_ENFORCED[limit]}")
    fix = None if root else _cgroup_fix() if limit in _OF_CGROUPS else subordinate_ids.as_root()
    return weak("limits", limit.value, (_WATCHED if limit in capabilities.watched else _NOTHING)[limit], fix)


def _cpus(held: bool, *, root: bool) -> Check:
    if held:
        return ok("limits", "cpus", "enforced by the cpu cgroup")
    return weak("limits", "cpus", "not enforced: no cgroup", None if root else _cgroup_fix())


def _cgroup_fix() -> str:
    """Return what gets control groups for this ordinary user here, without paddock as root."""
    unified = os.path.exists("/sys/fs/cgroup/cgroup.controllers")  # systemd hands on nothing of version 1
    if unified and os.path.isdir("/run/systemd/system"):
        import getpass

        if not os.path.isdir(f"/run/user/{os.getuid()}/systemd"):
            return f"loginctl enable-linger {getpass.getuser()}"  # a service manager of one's own delegates
        return "paddock daemon stop; systemd-run --user --scope -p Delegate=yes paddock doctor"
    as_root = subordinate_ids.as_root()
    if as_root != subordinate_ids.AS_ROOT:
        return as_root
    return f"ask root for control groups of your own ({_HOW_TO_DELEGATE}), or {as_root}"
