"""Making a jail, the keeper's half: everything that needs the power of the machine, while the child gives up its own.

`begin` clones the child and builds its layers; the child goes on by itself (`_inside.py`) and reports; `finish`
looks at the result from outside and writes it down. Between the two the keeper serves others.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from typing import Any, cast

from paddock.keeper import _posture
from paddock.keeper._inside import MASKED, Gifts, Inside, become_sandbox, listener_names
from paddock.keeper._plan import JailPlan
from paddock.keeper._records import Record, Records
from paddock.keeper._slots import Slots
from paddock.keeper._trace import Steps
from paddock.linux import cgroups, fsids, mounts, namespaces, pidfd, proc, seccomp
from paddock.linux.namespaces import IdMap
from paddock.linux.undo import UndoStack

_OVERLAY_ROOT = (("volatile", None), ("redirect_dir", "on"), ("metacopy", "on"))
_OVERLAY_USER = (("volatile", None), ("userxattr", None))


class JailError(Exception):
    """A jail could not be made; nothing of it is left. `errno` is the kernel's number where there is one."""

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What all jails of this keeper share. Descriptors are opened once and kept."""

    root_mode: bool
    uid: int
    boot: str
    pool: int
    slots: Slots
    groups: cgroups.Base | None
    records: Records
    mount_point: bytes
    dev_tree: bytes
    null: int
    filter: seccomp.Filter
    landlock_abi: int
    own_namespaces: dict[str, int] | None
    masks: tuple[bytes, ...]


@dataclass(slots=True, kw_only=True)
class Jail:
    """A jail, first half made, then alive."""

    plan_id: str
    pid: int
    pidfd: int
    group: cgroups.Group | None
    slot: int | None
    record: Record | None = None
    group_released: bool = False


@dataclass(slots=True, kw_only=True)
class Pending:
    """A jail whose child has been sent on its way and has not reported yet."""

    plan: JailPlan
    jail: Jail
    sync: socket.socket
    undo: UndoStack
    steps: Steps
    late: list[int]
    agent_pid: int = 0
    inside: dict[str, dict[str, float]] | None = None


def masks() -> tuple[bytes, ...]:
    return tuple(name for name in MASKED if os.path.lexists(b"/proc/" + name))


def begin(house: House, plan: JailPlan) -> Pending:
    """Sends a child on its way. JailError, with everything undone."""
    steps = Steps(plan.fault.removeprefix("keeper:") if plan.fault.startswith("keeper:") else "")
    undo = UndoStack()
    try:
        return _begin(house, plan, steps, undo)
    except Exception as error:
        with undo:
            raise _as_jail_error(error, steps) from None
        raise


def _as_jail_error(error: Exception, steps: Steps) -> JailError:
    done = list(steps.seconds)
    number = error.errno if isinstance(error, OSError) else None
    return JailError(f"{type(error).__name__} after step {done[-1] if done else 'start'!r}: {error}", number)


def _begin(house: House, plan: JailPlan, steps: Steps, undo: UndoStack) -> Pending:
    late: list[int] = []
    undo.push(_close_all, late)
    steps.begin("record")
    directory = house.records.make(plan.id)
    late.append(directory)
    undo.push(house.records.remove, plan.id)
    steps.end("record")
    group: cgroups.Group | None = None
    joining = cgroups.Joining(None, ())
    if house.groups is not None:
        group, joining = _make_group(house.groups, plan, steps, undo, late)
    steps.begin("clone")
    slot = None
    if house.root_mode:
        slot = house.slots.take()
        undo.push(house.slots.give_back, slot)
    sync, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    undo.push(sync.close)
    sync.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # the agent's pid, as this side sees it
    with theirs:
        pid = _clone(_inside(house, plan, theirs), sync, joining.clone_into)
    undo.push(_reap, pid)
    jail = Jail(plan_id=plan.id, pid=pid, pidfd=pidfd.open(pid), group=group, slot=slot)
    undo.push(os.close, jail.pidfd)
    steps.end("clone")
    steps.begin("maps")
    _write_maps(house, pid, slot)
    steps.end("maps")
    listeners = _listen(house, directory, steps, late)
    root, usr = _make_layers(house, plan, slot, steps, late)
    gifts = Gifts(root, usr, listeners, joining)
    steps.begin("send")
    try:
        socket.send_fds(sync, [b"g"], gifts.pack())
    except BrokenPipeError:
        pass  # the child has failed already; why, it has said, and `receive` reads it
    steps.end("send")
    sync.setblocking(False)
    return Pending(plan=plan, jail=jail, sync=sync, undo=undo, steps=steps, late=late)


def _inside(house: House, plan: JailPlan, sync: socket.socket) -> Inside:
    return Inside(
        plan=plan,
        root_mode=house.root_mode,
        sync=sync,
        mount_point=house.mount_point,
        dev_tree=house.dev_tree,
        masks=house.masks,
        null=house.null,
        filter=house.filter,
        landlock_abi=house.landlock_abi,
    )


def _listen(house: House, directory: int, steps: Steps, late: list[int]) -> dict[str, int]:
    steps.begin("sockets")
    listeners: dict[str, int] = {}
    for name in listener_names(house.root_mode):
        # Through the descriptor: a socket's address holds 107 bytes, a state directory's path may be longer.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(f"/proc/self/fd/{directory}/{name}.sock")
            listener.listen(64)
            listeners[name] = listener.detach()
        late.append(listeners[name])
    steps.end("sockets")
    return listeners


def _make_group(
    base: cgroups.Base, plan: JailPlan, steps: Steps, undo: UndoStack, late: list[int]
) -> tuple[cgroups.Group, cgroups.Joining]:
    steps.begin("cgroup")
    limits = cgroups.GroupLimits(
        memory_bytes=plan.memory_bytes, swap_bytes=plan.swap_bytes, pids=plan.processes, cpus=plan.cpus
    )
    group = base.create(plan.id, limits)
    undo.push(_remove_group, group)
    joining = group.join_descriptors()
    late += [*joining.tasks, *([joining.clone_into] if joining.clone_into is not None else [])]
    steps.end("cgroup")
    return group, joining


def _remove_group(group: cgroups.Group) -> None:
    group.kill()
    group.remove()


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _clone(inside: Inside, sync: socket.socket, into: int | None) -> int:
    # net, ipc, uts and cgroup follow in the child, while the keeper builds the layers.
    flags = namespaces.NEWUSER | namespaces.NEWPID | namespaces.NEWNS
    if into is None:
        pid = namespaces.clone(flags)
    else:
        pid, descriptor = namespaces.clone_into(flags, into)
        if pid:
            os.close(descriptor)
    if pid == 0:
        try:
            sync.close()
            become_sandbox(inside)
        finally:
            os._exit(1)
    return pid


def _reap(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass


def _write_maps(house: House, pid: int, slot: int | None) -> None:
    if slot is None:
        one = (IdMap(0, 0, 1),)  # the keeper's own namespace shows its one uid as 0
        namespaces.write_id_maps(pid, one, one, deny_setgroups=True)
        return
    whole = (IdMap(0, house.slots.base(slot), 65536),)
    namespaces.write_id_maps(pid, whole, whole)


def _make_layers(
    house: House, plan: JailPlan, slot: int | None, steps: Steps, late: list[int]
) -> tuple[int, int | None]:
    """The root file system and the machine's /usr, as detached mounts."""
    steps.begin("overlay")
    view = house.pool if slot is None else house.slots.view(slot)
    root = _overlay(house, plan, slot, view, late) if plan.layers else _whole(plan, view)
    late.append(root)
    steps.end("overlay")
    if not plan.host_usr:
        return root, None
    steps.begin("usr")
    usr = mounts.open_tree(b"/usr", recursive=not house.root_mode)
    late.append(usr)
    mounts.set_attributes(usr, set=mounts.RDONLY | mounts.NOSUID | mounts.NODEV, recursive=not house.root_mode)
    steps.end("usr")
    return root, usr


def _overlay(house: House, plan: JailPlan, slot: int | None, view: int, late: list[int]) -> int:
    def directory(path: str) -> int:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=view)
        late.append(fd)
        return fd

    lower = [("lowerdir+", directory(f"{layer}/root")) for layer in plan.layers]
    upper = ("upperdir", directory(f"{plan.tree}/root"))
    work = ("workdir", directory(f"{plan.tree}/work"))
    options = (*lower, upper, work, *(_OVERLAY_USER if slot is None else _OVERLAY_ROOT))
    if slot is None:
        return mounts.fs_mount("overlay", options, mounts.NODEV | mounts.NOSUID)
    # What overlay makes by itself in the upper layer is owned by whoever mounts it: that must be an id of the range.
    with fsids.acting_as(house.slots.base(slot), house.slots.base(slot)):
        return mounts.fs_mount("overlay", options, mounts.NODEV | mounts.NOSUID)


def _whole(plan: JailPlan, view: int) -> int:
    tree = os.open(f"{plan.tree}/root", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=view)
    try:
        fd = mounts.open_tree(b"", tree)
        mounts.set_attributes(fd, set=mounts.NOSUID | mounts.NODEV)
        return fd
    finally:
        os.close(tree)


def receive(pending: Pending) -> bool:
    """Takes what the child says. True when all of it is there. JailError if it failed, with everything undone."""
    try:
        data, ancillary, _, _ = pending.sync.recvmsg(65536, socket.CMSG_SPACE(16))
        if not data:
            raise JailError("the child died before it was ready")
        message = cast("dict[str, Any]", json.loads(data))
        if "error" in message:
            raise JailError(f"inside, after step {message['after']!r}: {message['error']}", message["errno"])
        if "agent" in message:
            pending.agent_pid = _sender(ancillary)
        else:
            pending.inside = cast("dict[str, dict[str, float]]", message)
        return bool(pending.agent_pid) and pending.inside is not None
    except BlockingIOError:
        return False
    except BaseException as error:
        abandon(pending)
        if isinstance(error, JailError):
            raise
        raise JailError(f"the child's report can't be read: {error}") from error


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int.from_bytes(payload[:4], "little")
    raise JailError("the agent's message came without its credentials")


def abandon(pending: Pending) -> None:
    """Undoes a jail that is not ready."""
    pending.undo.unwind()


def finish(house: House, pending: Pending) -> tuple[Jail, dict[str, float]]:
    """Looks at the sandbox from outside, writes its record. JailError, with everything undone."""
    steps, plan, jail = pending.steps, pending.plan, pending.jail
    try:
        steps.end("inside")
        steps.begin("posture")
        _posture.check(jail.pid, pending.agent_pid, base=_base(house, jail), own=house.own_namespaces)
        steps.end("posture")
        steps.begin("written")
        jail.record = Record(
            id=plan.id,
            pid=jail.pid,
            start=proc.start_time(jail.pid),
            boot=house.boot,
            slot=jail.slot,
            deadline=plan.deadline,
            tree=plan.tree,
            template=plan.template,
            limits={"disk_bytes": plan.disk_bytes, "inodes": plan.inodes, "memory_bytes": plan.memory_bytes},
        )
        house.records.write(jail.record)
        steps.end("written")
    except BaseException as error:
        abandon(pending)
        raise JailError(f"the sandbox is not as planned: {type(error).__name__}: {error}") from error
    pending.undo.release()
    pending.sync.close()
    timings = dict(steps.seconds)
    for kind, values in (pending.inside or {}).items():
        prefix = "inside." if kind == "seconds" else "faults."
        timings.update({f"{prefix}{name}": value for name, value in values.items()})
    return jail, timings


def _base(house: House, jail: Jail) -> int:
    return 0 if jail.slot is None else house.slots.base(jail.slot)  # 0: as the keeper's own namespace shows it


def close_late(pending: Pending) -> None:
    """Closes what the layers were built with: closing a mount waits for the kernel, so it is done after the reply."""
    _close_all(pending.late)
