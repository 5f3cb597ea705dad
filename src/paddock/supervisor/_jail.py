"""Make a jail from a spare: the supervisor's part, which needs privileges over the machine.

`begin` builds the layers, enters the spare's namespaces, makes the layers its tree, and returns. At that time two
waiting processes of paddock run in there. An earlier sandbox may have written the tree, so no path in it is followed
through a link. Then the processes continue (`native/jail.c`) and report. `check` looks at the result from outside, and
`commit` writes the record. In between the supervisor serves other requests.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from paddock.linux import cgroups, fsids, mounts, namespaces, proc
from paddock.linux.descriptors import closing
from paddock.supervisor import _dev, _exits, _orders, _places, _posture, trust_places
from paddock.supervisor._context import SupervisorContext
from paddock.supervisor._errors import Died, JailError, Steps, as_jail_error, died_of
from paddock.supervisor._mounts import Mounting
from paddock.supervisor._namespaces import NamespaceSet, visit
from paddock.supervisor._places import PLACE, move
from paddock.supervisor._sizes import SizeMounts
from paddock.supervisor._spare import Spare, read_report
from paddock.supervisor._supervised import Supervised
from paddock.supervisor.plan import JAIL, WAITING, JailPlan
from paddock.supervisor.records import Record

_HOSTS_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK
_OTHER_HOSTS = b"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
_NAMED = b"\t# this sandbox\n"
_MOST_HOSTS = 1 << 16


class _Layers(NamedTuple):
    """Hold detached mounts: the root, the machine's /usr, the plan's mounts with their targets, the certificates, a
    /dev with extra devices, and the files that state its size."""

    root: int
    usr: int | None
    mounts: list[tuple[str, int]]
    trust: tuple[int, ...] = ()
    dev: int | None = None
    told: SizeMounts | None = None


@dataclass(slots=True, kw_only=True)
class Pending:
    """Hold a jail whose processes work and have not reported yet."""

    plan: JailPlan
    spare: Spare
    steps: Steps
    late: list[int]
    root: os.stat_result
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
    late: list[int] = []
    spare.undo.push(_close_all, late)
    with steps("record"):
        orders = _orders.plan(context, plan)
    with steps("limits"):
        if spare.group is not None:
            spare.group.limit(
                cgroups.GroupLimits(
                    memory_bytes=plan.memory_bytes, swap_bytes=plan.swap_bytes, pids=plan.processes, cpus=plan.cpus
                )
            )
    mounting = Mounting(context, plan, spare.slot, late)
    with steps("overlay"):
        root = mounting.root()
    usr = None
    if plan.host_usr:
        with steps("usr"):
            usr = context.slots.usr(spare.slot, late)
    mounted: list[tuple[str, int]] = []
    if plan.mounts or plan.trees:
        with steps("mounts"):
            mounted = [*mounting.mounts(), *mounting.trees()]

    trust: tuple[int, ...] = ()
    if plan.exits:
        with steps("trust"):
            trust = trust_places.make(context.spares, spare.name, late)

    dev = None
    if plan.devices:
        with steps("devices"):
            dev = _make_dev(context, plan.devices)
            late.append(dev)

    told = None
    if plan.kind == JAIL:  # any other has its own kernel, which gets its size otherwise
        with steps("sizes"):
            told = context.sizes.tell(plan, spare.group, late)

    _fit_out(context, plan, spare, _Layers(root, usr, mounted, trust, dev, told), steps, orders)
    place = os.fstat(root)
    with steps("init"):
        _check_init(context, spare, place)
    exits = _make_exits(spare, steps) if plan.exits else None
    return Pending(
        plan=plan,
        spare=spare,
        steps=steps,
        late=late,
        root=place,
        exits=exits,
        cpus=None if told is None else told.cpus,
    )


def _check_init(context: SupervisorContext, spare: Spare, root: os.stat_result) -> None:
    """Check pid 1 while the agent still works: pid 1 is done by then."""
    base = context.base(spare.slot) or 0  # 0: as the supervisor's own namespace shows it
    try:
        _posture.check_init(spare.pid, base=base, root=root, own=context.own_namespaces)
    except _posture.PostureError as error:
        raise _died(spare, error) or JailError(f"the sandbox is not as planned: {error}") from None
    except (FileNotFoundError, ProcessLookupError):
        read_report(spare.sync)  # it is ending; why, the agent may have said
        raise Died("the child died before it was ready") from None


def _make_exits(spare: Spare, steps: Steps) -> _exits.Exits:
    with steps("exits"):
        try:
            network = _exits.open_network(spare.pid) if spare.network is None else os.dup(spare.network)
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


# -- from inside


def _fit_out(
    context: SupervisorContext, plan: JailPlan, spare: Spare, layers: _Layers, steps: Steps, orders: bytes
) -> None:
    """Make `layers` the root of the spare's processes, and move the staged mounts into it.

    They get their `orders` as soon as they have their root. The agent works while the kernel detaches the old root.
    """
    spaces, home = spare.spaces, context.home
    with visit(namespaces.NEWUTS, spaces.names, home.names), visit(namespaces.NEWNS, spaces.mounts, home.mounts):
        with steps("attach"):
            if context.hostnames or plan.hostname != plan.id.replace("_", "-"):  # a name that a caller chose is needed
                namespaces.set_hostname(plan.hostname.encode())
            with closing(os.open(context.mount_point, PLACE)) as place:
                mounts.move_mount(layers.root, place)
            os.fchdir(layers.root)
            if plan.kind == JAIL:  # any other has the sandbox's tree below its own, and the guest in there does it
                _name(plan, context.base(spare.slot))
            if layers.usr is not None:
                _attach_usr(layers.usr)
        with steps("stage"):
            if layers.dev is None:
                _take(context, plan, b"dev", b"shm", plan.tmp_bytes // 2)
            else:
                move(layers.dev, b"dev")
                _take(context, plan, b"dev/pts")
                _take(context, plan, b"dev/shm", b"", plan.tmp_bytes // 2)
            _take(context, plan, b"proc")
            _take(context, plan, b"tmp", b"", plan.tmp_bytes)
            if layers.told is not None:
                _tell(layers.told)
            if layers.trust:
                trust_places.attach(layers.trust)
        if layers.mounts:
            with steps("places"):
                _places.attach(context.base(spare.slot), layers.mounts)
        if plan.protect:
            with steps("protect"):
                _places.protect(plan.protect)
        with steps("pivot"):
            mounts.pivot()
        with steps("send"), suppress(ConnectionError):  # the child has failed already; why, it has said
            spare.sync.send(orders)
        with steps("detach"):
            mounts.detach_old_root()


def _name(plan: JailPlan, base: int | None) -> None:
    """Make the sandbox's own host name resolve. It doesn't where the tree has no /etc or no room."""
    acting = nullcontext() if base is None else fsids.acting_as(base, base)
    with suppress(OSError), acting, closing(_places.find(b"etc/hosts", _HOSTS_FLAGS, 0o644)) as file:
        _name_in(file, plan.hostname)


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


def _attach_usr(usr: int) -> None:
    """Attach the machine's /usr, with the tree's own /usr/local in it."""
    with closing(_places.find(b"usr/local", PLACE)) as place:
        local = mounts.open_tree(b"", place)
    with closing(local):
        move(usr, b"usr")
        move(local, b"usr/local")


def _tell(told: SizeMounts) -> None:
    """Mount files over those of /proc, and /sys where the tree has that directory."""
    for name, file in told.proc:  # found as root of what was mounted a moment ago
        mounts.move_mount(file, mounts.AT_FDCWD, b"proc/" + name)
    try:
        move(told.sys, b"sys")
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return
    for name, group in told.groups:
        mounts.move_mount(group, told.sys, name)


def _take(context: SupervisorContext, plan: JailPlan, name: bytes, tmpfs: bytes | None = None, size: int = 0) -> None:
    """Move a mount from the stage to its place, and set the size of the tmpfs at `tmpfs` below it."""
    with closing(os.open(context.stage + b"/" + name, PLACE)) as fd:
        if tmpfs is not None:
            with closing(os.open(tmpfs, PLACE, dir_fd=fd) if tmpfs else os.dup(fd)) as where:
                mounts.reconfigure(where, "tmpfs", (("size", str(size)), ("nr_inodes", str(plan.inodes))))
        move(fd, name)


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
    """Check the sandbox from outside. Raises JailError, with everything undone."""
    steps, spare = pending.steps, pending.spare
    try:
        steps.end("inside")
        with steps("posture"):
            try:
                _posture.check_agent(pending.agent_pid, spare.pid, root=pending.root, own=context.own_namespaces)
            except (FileNotFoundError, ProcessLookupError):
                raise Died("its agent died before it was ready") from None
            if pending.cpus is not None:
                for pid in (spare.pid, pending.agent_pid):
                    os.sched_setaffinity(pid, pending.cpus)
    except BaseException as error:
        _give_up(pending, error)


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
            way = None
            if spare.network is not None and (pending.exits is None or plan.kind.endswith(WAITING)):
                way = NamespaceSet(os.dup(spare.spaces.mounts), network=os.dup(spare.network))
            spare.sync.send(_orders.committed(plan.deadline))
    except BaseException as error:
        _give_up(pending, error)
    spare.sync.close()
    sandbox = Supervised(
        record=record,
        pidfd=spare.pidfd,
        group=spare.group,
        exits=pending.exits,
        way=way,
        diag=None if spare.diag is None else os.dup(spare.diag),
    )
    return sandbox, _timings(pending) if plan.trace else {}


def _give_up(pending: Pending, error: BaseException) -> NoReturn:
    planned = JailError(f"the sandbox is not as planned: {type(error).__name__}: {error}")
    abandon(pending, error if isinstance(error, Died) else _died(pending.spare, error) or planned)


def _timings(pending: Pending) -> dict[str, float]:
    timings = {f"spare.{name}": seconds for name, seconds in pending.spare.steps.seconds.items()}
    timings |= pending.steps.seconds
    for took, prefix in ((pending.spare.took, "spare.inside."), (pending.inside, "inside.")):
        timings |= {prefix + name: seconds for name, seconds in took.items()}
    return timings


def close_layers(pending: Pending) -> None:
    """Close what built the layers. The kernel takes long to release a mount, so this comes after the reply."""
    _close_all(pending.late)


def close_spare(pending: Pending) -> None:
    """Close what only a spare needs."""
    pending.spare.spaces.close()
    for fd in (pending.spare.network, pending.spare.diag):
        if fd is not None:
            os.close(fd)
