"""Make a jail from a spare: the supervisor's part, which needs privileges over the machine.

`begin` builds detached mounts and sends them with the plan to pid 1, which makes them its file system
(`native/stage.c`). Meanwhile the supervisor serves other requests. After the agent's report, `check` looks at the
result from outside, and attaches what lies at places of the plan's. `commit` writes the record.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import NoReturn

from paddock.linux import cgroups, fsids, namespaces, openat2, proc
from paddock.linux.descriptors import closing
from paddock.supervisor import _dev, _exits, _orders, _places, _posture, trust_places
from paddock.supervisor._context import SupervisorContext
from paddock.supervisor._errors import Died, JailError, Steps, as_jail_error, died_of
from paddock.supervisor._mounts import Mounting
from paddock.supervisor._namespaces import OpenNamespaces, open_of, visit
from paddock.supervisor._spare import Spare, read_report
from paddock.supervisor._supervised import Supervised
from paddock.supervisor.plan import JAIL, WAITING, JailPlan
from paddock.supervisor.records import Record

_HOSTS_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW
_OTHER_HOSTS = b"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
_NAMED = b"\t# this sandbox\n"
_MOST_HOSTS = 1 << 16


@dataclass(slots=True, kw_only=True)
class Pending:
    """Hold a jail whose processes work and have not reported yet."""

    plan: JailPlan
    spare: Spare
    steps: Steps
    to_close: list[int]
    root: os.stat_result
    mounted: list[tuple[str, int]]
    """Mounts of the plan's, with their targets."""
    trust: tuple[int, ...] = ()
    """Files of certificates."""
    exits: _exits.Exits | None = None
    cpus: tuple[int, ...] | None = None
    """The processors that its processes start on."""
    agent_pid: int = 0
    inside: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds of each step of the agent."""


def begin(context: SupervisorContext, plan: JailPlan, spare: Spare) -> Pending:
    """Turn `spare` into the jail of `plan`. Raises JailError, with everything undone, the spare too."""
    steps = Steps.of_supervisor(plan.fault)
    try:
        with spare.undo:
            try:
                return _begin(context, plan, spare, steps)
            except OSError as error:
                raise _died(spare, error) or error from None
    except Exception as error:
        raise as_jail_error(error, steps) from None


def _died(spare: Spare, error: BaseException) -> Died | None:
    """Return Died if the process is dead, so that the caller tries another spare."""
    return Died(f"the child died before it was ready: {error}") if died_of(error, spare.pidfd) else None


def _begin(context: SupervisorContext, plan: JailPlan, spare: Spare, steps: Steps) -> Pending:
    to_close: list[int] = []
    spare.undo.push(_close_all, to_close)
    with steps("limits"):
        if spare.group is not None:
            spare.group.limit(
                cgroups.GroupLimits(
                    memory_bytes=plan.memory_bytes, swap_bytes=plan.swap_bytes, pids=plan.processes, cpus=plan.cpus
                )
            )
    mounting = Mounting(context, plan, spare.slot, to_close)
    with steps("overlay"):
        given = [mounting.root()]
        root = os.fstat(given[0])
    if plan.host_usr:
        with steps("usr"):
            given.append(context.slots.usr(spare.slot, to_close))
    if plan.devices:
        with steps("devices"):
            to_close.append(_make_dev(context, plan.devices))
            given.append(to_close[-1])
    mounted: list[tuple[str, int]] = []
    if plan.mounts or plan.trees:
        with steps("mounts"):
            mounted = [*mounting.mounts(), *mounting.trees()]
    trust: tuple[int, ...] = ()
    if plan.exits:
        with steps("trust"):
            trust = trust_places.make(context.spares, spare.name, to_close)
    size_mounts = None
    if plan.kind == JAIL:  # any other has its own kernel, which gets its name and size otherwise
        with steps("name"):
            _name(plan, context.base(spare.slot), given[0])
        with steps("sizes"):
            size_mounts = context.sizes.make(plan, spare.group, to_close)
            given += size_mounts.descriptors()
    with steps("send"), suppress(ConnectionError):  # the child has failed already; why, it has said
        socket.send_fds(spare.sync, [_orders.plan(context, plan, size_mounts)], given)
    exits = _make_exits(spare, steps) if plan.exits else None
    return Pending(
        plan=plan,
        spare=spare,
        steps=steps,
        to_close=to_close,
        root=root,
        mounted=mounted,
        trust=trust,
        exits=exits,
        cpus=None if size_mounts is None else size_mounts.cpus,
    )


def _make_exits(spare: Spare, steps: Steps) -> _exits.Exits:
    with steps("exits"):
        try:
            network = open_of(spare.pid, "net") if spare.network is None else os.dup(spare.network)
        except FileNotFoundError:
            read_report(spare.sync)  # it has failed already; why, it has said
            raise
        with closing(network):
            exits = _exits.make(network, may_return=spare.network is None)
        spare.undo.push(_exits.close, exits)
    return exits


def _make_dev(context: SupervisorContext, devices: tuple[str, ...]) -> int:
    try:
        return _dev.make(context.dev_tree + b"_more", root_mode=context.root_mode, more=devices)
    except OSError as error:
        raise JailError(f"it cannot have {', '.join(devices)} of this machine: {error}", error.errno) from None


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _name(plan: JailPlan, base: int | None, root: int) -> None:
    """Make the sandbox's own host name resolve. It doesn't where the tree has no /etc or no room."""
    acting = nullcontext() if base is None else fsids.acting_as(base, base)
    with suppress(OSError), acting, closing(_open_hosts(root)) as file:
        _name_in(file, plan.hostname)


def _open_hosts(root: int) -> int:
    return openat2.open_beneath(root, b"etc/hosts", _HOSTS_FLAGS, 0o644)


def _name_in(hosts: int, name: str) -> None:
    """Make `name` resolve by the file `hosts`. It replaces the name of the sandbox that the file was copied from.

    A new file gets the usual lines too. Anything but a regular file of at most 64 KiB stays as it is.
    """
    status = os.fstat(hosts)
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_HOSTS:
        return
    if not status.st_size:
        os.fchmod(hosts, 0o644)  # with any umask
    before = os.pread(hosts, _MOST_HOSTS, 0)
    kept = [line for line in (before or _OTHER_HOSTS).splitlines(keepends=True) if not line.endswith(_NAMED)]
    after = b"".join(kept).removesuffix(b"\n") + b"\n127.0.0.1\t" + name.encode() + _NAMED
    if after != before:
        os.pwrite(hosts, after, 0)
        os.ftruncate(hosts, len(after))


# -- its report


def receive(pending: Pending) -> bool:
    """Receive the agent's report; return True when it is ready. Raises JailError, with everything undone."""
    try:
        report = read_report(pending.spare.sync)
    except JailError as error:
        abandon(pending, error)
    if report is None:
        return False
    pending.agent_pid, pending.inside = report.pid, report.took
    return True


def abandon(pending: Pending, error: JailError) -> NoReturn:
    """Undo a jail that is not ready, and raise `error`, with a note for each undo step that failed."""
    with pending.spare.undo:
        raise error


def check(context: SupervisorContext, pending: Pending) -> None:
    """Check the sandbox from outside, and attach its mounts. Raises JailError, with everything undone."""
    plan, steps, spare = pending.plan, pending.steps, pending.spare
    try:
        steps.end("inside")
        with steps("posture"):
            _check_posture(context, pending)
            if pending.cpus is not None:
                for pid in (spare.pid, pending.agent_pid):
                    os.sched_setaffinity(pid, pending.cpus)
        if pending.mounted or pending.trust or plan.protect:
            with steps("places"), visit(namespaces.NEWNS, spare.mounts, context.home):
                if pending.trust:
                    trust_places.attach(pending.trust)
                _places.attach(context.base(spare.slot), pending.mounted)
                _places.protect(plan.protect)
    except BaseException as error:
        _give_up(pending, error)


def _check_posture(context: SupervisorContext, pending: Pending) -> None:
    init, root, own = pending.spare.pid, pending.root, context.own_namespaces
    base = context.base(pending.spare.slot) or 0  # 0: as the supervisor's own namespace shows it
    try:
        _posture.check_init(init, base=base, root=root, own=own)
        _posture.check_agent(pending.agent_pid, init, root=root, own=own)
    except (FileNotFoundError, ProcessLookupError):
        raise Died("its agent died before it was ready") from None


def commit(context: SupervisorContext, pending: Pending) -> tuple[Supervised, dict[str, float]]:
    """Write the record of a checked sandbox. Raises JailError, with everything undone.

    The directory gets its name after the record is in it, so `run` never has a directory without a record.
    """
    steps, plan, spare = pending.steps, pending.plan, pending.spare
    try:
        with steps("written"):
            record = Record(
                pid=spare.pid,
                start=proc.start_time(spare.pid),
                boot=context.boot,
                slot=spare.slot,
                group=None if spare.group is None else spare.group.name,
                limits={name: getattr(plan, name) for name in ("disk_bytes", "inodes", "memory_bytes", "processes")},
                exits=plan.exits,
                devices=list(plan.devices),
                **plan.recorded,
            )
            context.records.publish(record, context.spares, spare.name)
            spare.undo.push(context.records.remove, plan.id)
            opened = None
            if spare.network is not None and (pending.exits is None or plan.kind.endswith(WAITING)):
                opened = OpenNamespaces(os.dup(spare.mounts), os.dup(spare.network))
            spare.sync.send(_orders.committed(plan.deadline))
    except BaseException as error:
        _give_up(pending, error)
    spare.sync.close()
    sandbox = Supervised(
        record=record,
        pidfd=spare.pidfd,
        group=spare.group,
        exits=pending.exits,
        namespaces=opened,
        diag=None if spare.diag is None else os.dup(spare.diag),
    )
    return sandbox, _timings(pending) if plan.trace else {}


def _give_up(pending: Pending, error: BaseException) -> NoReturn:
    planned = JailError(f"the sandbox is not as planned: {type(error).__name__}: {error}")
    abandon(pending, error if isinstance(error, JailError) else _died(pending.spare, error) or planned)


def _timings(pending: Pending) -> dict[str, float]:
    timings = {f"spare.{name}": seconds for name, seconds in pending.spare.steps.seconds.items()}
    timings |= pending.steps.seconds
    for took, prefix in ((pending.spare.took, "spare.inside."), (pending.inside, "inside.")):
        timings |= {prefix + name: seconds for name, seconds in took.items()}
    return timings


def close_layers(pending: Pending) -> None:
    """Close what built the layers. The kernel takes long to release a mount, so this comes after the reply."""
    _close_all(pending.to_close)


def close_spare(pending: Pending) -> None:
    """Close what only a spare needs."""
    spare = pending.spare
    for fd in (spare.mounts, spare.network, spare.diag):
        if fd is not None:
            os.close(fd)
