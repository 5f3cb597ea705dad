"""Make spares: namespaces, ids, a control group and two processes, without file system, limits or name.

One is ready while a supervisor has work, so that a create has little left to do. It costs some hundred kilobytes and
runs nothing. It dies with the supervisor, and the next one removes its group.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from paddock.linux import cgroups, namespaces, pidfd, subordinate_ids
from paddock.linux.namespaces import IdMap
from paddock.linux.undo import UndoStack
from paddock.supervisor._context import SupervisorContext
from paddock.supervisor._errors import Died, InjectedFault, JailError, Steps, as_jail_error, died_of
from paddock.supervisor._namespaces import open_of
from paddock.supervisor._spawner import Spawner
from paddock.supervisor.layout import ID_COUNT, ORDINARY_ID
from paddock.supervisor.records import remove_directory
from paddock.wire import WireError, descriptors_in
from paddock.wire.guest import Report

SOCKET_BYTES = 64 << 20
"""Bytes in socket buffers of a sandbox, where the kernel doesn't count them as memory."""


@dataclass(slots=True, kw_only=True)
class Spare:
    """Hold a spare. `undo` removes all of it. `sync` is the socket for its processes' reports and their plan.

    `name` is that of its directory among the spares and of its group.
    """

    pid: int
    pidfd: int
    group: cgroups.Group | None
    slot: int | None
    sync: socket.socket
    name: str
    mounts: int
    """A descriptor of its mount namespace."""
    undo: UndoStack
    steps: Steps
    network: int | None = None
    """Its network namespace, which the supervisor of an ordinary user can't open from outside."""
    diag: int | None = None
    """A socket for `sock_diag.unix_bytes` of it, if the supervisor counts its memory."""
    ready: bool = False
    took: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds of each of its steps."""


def begin(context: SupervisorContext, spawner: Spawner, fault: str = "") -> Spare:
    """Start a spare; `receive` says when it is ready. Raises JailError, with everything undone."""
    steps = Steps.of_supervisor(fault)
    try:
        with UndoStack() as undo:
            return _begin(context, spawner, fault, steps, undo)
    except Exception as error:
        raise as_jail_error(error, steps) from None


def _begin(context: SupervisorContext, spawner: Spawner, fault: str, steps: Steps, undo: UndoStack) -> Spare:
    # Not named after a sandbox, which is not known yet; the record of the sandbox will name its group.
    name = f"gr_{os.urandom(8).hex()}"
    with steps("cgroup"):
        group: cgroups.Group | None = None
        joining, unified = nullcontext(list[int]()), False
        if context.groups is not None:
            # The limit for sockets is the same for every plan: set ahead.
            group = context.groups.create(name, cgroups.GroupLimits(socket_bytes=SOCKET_BYTES))
            undo.push(_remove_group, group)
            joining, unified = group.joining(), group.base.unified is not None
    with steps("sockets"):
        os.mkdir(name, 0o700, dir_fd=context.spares)
        undo.push(remove_directory, context.spares, name)
        listeners = _listen(context, name)
    with steps("clone"):
        slot = None
        if context.root_mode:
            slot = context.slots.take()
            undo.push(context.slots.give_back, slot)
        sync, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.push(sync.close)
        sync.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # the agent's pid, as this side sees it
        base = None if slot is None else context.slots.base(slot)
        with theirs, joining as joined:
            fds = [listener.fileno() for listener in listeners]
            pid = spawner.clone(theirs, fds, joined, unified=unified, base=base, fault=fault)
        for listener in listeners:
            listener.close()
        undo.push(_reap, pid)
        descriptor = pidfd.open(pid)
        undo.push(os.close, descriptor)
    with steps("maps"):
        sync.setblocking(False)
        try:
            _write_maps(context, pid, slot)
            mounts = open_of(pid, "mnt")
            undo.push(os.close, mounts)
            sync.send(b"m")
        except OSError as error:
            read_report(sync)  # it has failed already; why, it has said
            if died_of(error, descriptor):
                raise Died("the child died before it was ready") from error
            raise
    return Spare(
        pid=pid,
        pidfd=descriptor,
        group=group,
        slot=slot,
        sync=sync,
        name=name,
        mounts=mounts,
        undo=undo,
        steps=steps,
    )


def _listen(context: SupervisorContext, name: str) -> list[socket.socket]:
    """Return the sockets of a sandbox; they will move with their directory. Without a range of ids there is one
    identity inside."""
    directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=context.spares)
    listeners: list[socket.socket] = []
    try:
        for identity in ("init", "user", "root") if context.whole else ("init", "user"):
            listeners.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            # Through the descriptor: a socket's address holds 107 bytes, a state directory's path may be longer.
            listeners[-1].bind(f"/proc/self/fd/{directory}/{identity}.sock")
            listeners[-1].listen(64)
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    finally:
        os.close(directory)
    return listeners


def _write_maps(context: SupervisorContext, pid: int, slot: int | None) -> None:
    if slot is not None:
        maps = (IdMap(0, context.slots.base(slot), ID_COUNT),)
    elif context.whole:
        maps = subordinate_ids.identity(ORDINARY_ID)
    else:
        maps = (IdMap(0, 0, 1),)  # the supervisor's own namespace shows its one uid as 0
    namespaces.write_id_maps(pid, maps, maps, deny_setgroups=not context.whole)


def _remove_group(group: cgroups.Group) -> None:
    group.kill()
    group.remove()


def _reap(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, 9)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def receive(spare: Spare) -> bool:
    """Receive its report; return True when it is ready. Raises JailError, with everything undone."""
    try:
        given: list[int] = []
        report = read_report(spare.sync, given)
        for fd in given:
            spare.undo.push(os.close, fd)
        if report is None:
            return False
        spare.took = report.took
        if given:  # nothing foreign has run there yet
            spare.network, spare.diag = given[0], given[1] if len(given) > 1 else None
        spare.ready = True
        return True
    except JailError:
        with spare.undo:  # what can't be undone is noted on it
            raise


class ReadyReport(NamedTuple):
    """Hold a report: seconds of each step, and the process that sent it."""

    took: dict[str, float]
    pid: int


def read_report(sync: socket.socket, given: list[int] | None = None) -> ReadyReport | None:
    """Return the report of a sandbox's process, None if there is none yet. Raises JailError if it failed or died.

    The descriptors that come with it, two at most, go to `given`; without `given`, none is taken.
    """
    room = socket.CMSG_SPACE(16) + (0 if given is None else socket.CMSG_SPACE(8))
    try:
        try:
            data, ancillary, _, _ = sync.recvmsg(65536, room, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # it ended with a message of ours unread; what it said comes after that news
            data, ancillary, _, _ = sync.recvmsg(65536, room, socket.MSG_CMSG_CLOEXEC)
    except BlockingIOError:
        return None
    if given is not None:
        given += descriptors_in(ancillary)
    if not data:
        raise Died("the child died before it was ready")
    try:
        report = Report.unpack(data)
    except WireError as error:
        raise JailError(f"the child's report can't be read: {error}") from error
    if report.failed:
        if report.errno == errno.EPIPE:  # pid 1 had the plan for an agent of whose death it had not heard
            raise Died("its agent died before it was ready")
        words = os.strerror(report.errno) if report.errno else InjectedFault.__name__
        raise JailError(f"inside, at step {report.step.decode()!r}: {words}", report.errno or None)
    took = {name.decode(): took / 1e9 for name, took in zip(report.steps, report.took, strict=True)}
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return ReadyReport(took, int.from_bytes(payload[:4], "little"))
    raise JailError("a report came without its sender's credentials")
