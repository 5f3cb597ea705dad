"""Write the messages to the spawner (`native/spawner.c`) and to pid 1 of a jail (`native/jail.c`).

The first message has what holds for all sandboxes. The plan follows when it is known, and at last the message that its
record exists.
"""

from __future__ import annotations

import math
import os
import resource
import socket
from typing import TYPE_CHECKING

from paddock.linux import kernel_files, landlock, masks, seccomp_profile, subordinate_ids
from paddock.linux.namespaces import IdMap
from paddock.supervisor._errors import JailError
from paddock.supervisor.layout import ORDINARY_ID
from paddock.supervisor.plan import JAIL, JailPlan
from paddock.wire import Kind, pack
from paddock.wire.guest import VERSION, Deadline, HostHello, Op, Plan, PlanFlags, Setup, SetupFlags

if TYPE_CHECKING:
    from paddock.supervisor._context import SupervisorContext
    from paddock.supervisor._sizes import SizeMounts

STAGED = ("root", "dev", "proc", "told")
"""Directories below the stage. The last one has the files that cover some of /proc."""
PARTS = 4
"""The share of each sandbox in what the kernel counts by user, if all sandboxes of a user are one user.

As root every sandbox has its own ids and so its own counts. Sandboxes of an ordinary user have the caller's: one of
them could use up what the caller and all the others have. Counts go through every user namespace on the way to the
first one, each with its own limits (kernel/ucount.c). The limits of a sandbox's outer namespace hold for all of it.
"""
_GRACE_SECONDS = 1.0
_LEAST_DATA = 32 << 20
"""The guest agent maps so much. Pages that it doesn't touch count for RLIMIT_DATA too."""
_NANOSECONDS = 1_000_000_000
_LONGEST = (1 << 63) - 1
_FOR_ALL = (resource.RLIMIT_CORE, 0, resource.RLIMIT_MEMLOCK, 8 << 20)
_COUNTS = (  # Documentation/admin-guide/sysctl/user.rst; what the user has in all is another table's
    (b"/proc/sys/fs/inotify/max_user_instances", b"sys/user/max_inotify_instances"),
    (b"/proc/sys/fs/inotify/max_user_watches", b"sys/user/max_inotify_watches"),
)
# Documentation/admin-guide/sysctl/kernel.rst. System V IPC memory counts in no process's size. PostgreSQL and X11
# want little of it.
_IPC = (
    (b"sys/kernel/shmmax", b"%d" % (64 << 20)),
    (b"sys/kernel/shmall", b"%d" % ((64 << 20) // os.sysconf("SC_PAGE_SIZE"))),
    (b"sys/kernel/msgmni", b"256"),  # of 16 KiB each
    (b"sys/kernel/sem", b"32000 32000 500 128"),
)

# Ports below 1024, for every user: no other program shares this network (networking/ip-sysctl.rst).
_PORTS = (b"sys/net/ipv4/ip_unprivileged_port_start", b"0")


def shared(context: SupervisorContext) -> bytes:
    """Return the message with what all sandboxes have in common."""
    machine, whole, root_mode = os.uname().machine, context.whole, context.root_mode
    ids = (IdMap(0, 0, 65536),) if root_mode else subordinate_ids.identity(ORDINARY_ID)
    if not whole:
        ids = (IdMap(ORDINARY_ID, 0, 1),)
    ruleset = landlock.ruleset(landlock.kernel_abi())
    counted = "memory" in context.held
    return Setup(
        flags=(SetupFlags.WHOLE if whole else SetupFlags(0)) | (SetupFlags(0) if root_mode else SetupFlags.SHARED),
        below_root=0 if ruleset is None else ruleset.below_root,
        ids=b"".join(b"%d %d %d\n" % line for line in ids),
        filter=seccomp_profile.build(machine, foreign_targets=whole),
        uncounted=b"" if counted else seccomp_profile.build_uncounted(machine, system_v=True),
        uncounted_ipc=b"" if counted else seccomp_profile.build_uncounted(machine, system_v=False),
        landlock=b"" if ruleset is None else ruleset.attributes,
        rlimits=_FOR_ALL,
        counts=_PORTS if root_mode else (*_PORTS, *_shares()),
        ipc=() if counted else tuple(part for setting in _IPC for part in setting),
        stage=context.stage,
        dev=context.dev_tree,
        masks=tuple(part.encode() for mask in masks.there(of_root=False).items() for part in mask),
    ).pack()


def _shares() -> tuple[bytes, ...]:
    found: list[bytes] = []
    for whole, own in _COUNTS:
        try:
            found += [own, b"%d" % (int(kernel_files.read(whole)) // PARTS)]
        except FileNotFoundError:
            continue  # a kernel without it
    return tuple(found)


def plan(context: SupervisorContext, plan: JailPlan, size_mounts: SizeMounts | None) -> bytes:
    """Return the message with the users, the places of its mounts, and the limits of each process. Control groups limit
    all processes together."""
    counted = "memory" in context.held
    rlimits = [resource.RLIMIT_NOFILE, plan.open_files]
    if plan.file_bytes or context.quotas is None:  # a quota counts what is written, and not the holes of sparse files
        rlimits += [resource.RLIMIT_FSIZE, plan.file_bytes or plan.disk_bytes]
    if "pids" not in context.held:
        rlimits += [resource.RLIMIT_NPROC, plan.processes]
    if not counted:
        rlimits += [resource.RLIMIT_DATA, max(plan.memory_bytes, _LEAST_DATA)]
    flags = PlanFlags(0) if plan.kind == JAIL else PlanFlags.FRAIL
    if not counted and plan.kind == JAIL:  # the memory of a virtual machine or of gVisor is a memfd, which they map
        flags |= PlanFlags.UNCOUNTED
    if plan.host_usr:
        flags |= PlanFlags.HOST_USR
    if plan.devices:
        flags |= PlanFlags.OWN_DEV
    root = next((user for user in plan.users if user.name == "root"), None)
    return Plan(
        flags=flags,
        uid=plan.user.uid,
        gid=plan.user.gid,
        root_uid=0 if root is None else root.uid,
        root_gid=0 if root is None else root.gid,
        grace=int(_GRACE_SECONDS * _NANOSECONDS),
        tmp_bytes=plan.tmp_bytes,
        inodes=plan.inodes,
        rlimits=tuple(rlimits),
        hostname=_hostname(context, plan),
        proc=() if size_mounts is None else tuple(name for name, _ in size_mounts.proc),
        groups=() if size_mounts is None else tuple(name for name, _ in size_mounts.groups),
    ).pack()


def _hostname(context: SupervisorContext, plan: JailPlan) -> bytes:
    """Return the name; none if the machine allows none, and no caller chose it. Raises JailError for a chosen one."""
    if context.hostnames:
        return plan.hostname.encode()
    if plan.hostname != plan.id.replace("_", "-"):
        raise JailError(f"sethostname {plan.hostname}: this machine refuses it, and a create without a host name works")
    return b""


def committed(deadline: float) -> bytes:
    """Return the message that the sandbox has a record, with its deadline. Until it comes, pid 1 ends with its
    supervisor."""
    return _nanoseconds(deadline).to_bytes(8, "little")


def _nanoseconds(seconds: float) -> int:
    return min(max(0, int(seconds * _NANOSECONDS)), _LONGEST) if math.isfinite(seconds) else _LONGEST


def send_deadline(directory: int, id: str, deadline: float) -> None:
    """Send pid 1 a new deadline. It reads it when it runs next, even if this supervisor is dead by then. Raises OSError
    if it is dead itself.

    `directory` is the one of all sandboxes' sockets.
    """
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    hello = pack(Kind.HELLO, 0, HostHello(version=VERSION).pack())
    order = pack(Kind.OPEN, 1, Deadline(deadline=_nanoseconds(deadline)).pack(), flags=Op.DEADLINE)
    with stream:
        stream.connect(f"/proc/self/fd/{directory}/{id}/init.sock")
        stream.sendall(hello + order)
