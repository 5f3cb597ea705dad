"""What the cloned child does to become a spare and then pid 1, read from top to bottom: this *is* the containment.

It runs in a copy of the stem's memory with everything imported. It gives up the machine's descriptors, namespaces and
ids, stages the mounts that depend on nobody's plan, starts the first agent, gives up its powers, and dozes. What is
left, the keeper does from outside (`_fitting.py`). It never returns and never lets an exception out.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from typing import NamedTuple, NoReturn

from paddock.guest import _everything as guest
from paddock.keeper import _shares
from paddock.keeper._agents import Agents, limit
from paddock.keeper._plan import JAIL, JailPlan
from paddock.keeper._trace import Steps, report_failure
from paddock.linux import (
    caps,
    cgroups,
    descriptors,
    mounts,
    namespaces,
    netlink,
    pidfd,
    prctl,
    proc,
    seccomp,
    sock_diag,
)

NOTHING = mounts.NOSUID | mounts.NODEV | mounts.NOEXEC
STAGED = (b"dev", b"proc", b"tmp")  # directories below the stage
COMMITTED = b"committed"
"""What the keeper says when a sandbox is complete and written down. Without that it ends with its keeper."""
_LARGEST_MESSAGE = 1 << 18
_TERMINALS = 128
_DOZE_SECONDS = 5.0
_LONGEST_DOZE_SECONDS = 60.0  # poll's clock stands still in suspend, that of deadlines does not
_GRACE_SECONDS = 1.0

# Of the whole machine, not of the sandbox: hidden where they exist. What only the machine's root may read needs no
# mask, since root inside is not that root; what can be written is covered by the read-only mount.
MASKED = (
    b"cmdline",
    b"config.gz",
    b"diskstats",
    b"interrupts",
    b"iomem",
    b"ioports",
    b"kallsyms",
    b"key-users",
    b"keys",
    b"modules",
    b"timer_list",
)


class Inside(NamedTuple):
    """What the child inherits. Descriptors not named here are closed first of all."""

    root_mode: bool
    whole: bool
    held: frozenset[str]
    sync: socket.socket
    listeners: dict[str, int]
    joining: cgroups.Joining
    stage: bytes
    dev_tree: bytes
    masks: tuple[bytes, ...]
    null: int
    filter: seccomp.Filter
    landlock_abi: int
    program: int
    fault: str


def listener_names(whole: bool) -> tuple[str, ...]:
    """The sockets of a sandbox. Without a range of ids there is one identity inside."""
    return ("init", "user", "root") if whole else ("init", "user")


def become_sandbox(inside: Inside) -> NoReturn:
    """Never returns. A failure is told to the keeper as {"error", "errno", "after"} and ends the process."""
    steps = Steps(inside.fault)
    steps.voice = inside.sync
    try:
        agents = _become_spare(inside, steps)
        _tell_ready(inside, steps)
        plan = _doze(inside, agents)
        limit(plan, inside.held)
        _serve(inside, plan, agents)
    except BaseException as error:
        report_failure(steps, error)
    finally:
        os._exit(1)


# -- a spare


def _tell_ready(inside: Inside, steps: Steps) -> None:
    if inside.root_mode:
        inside.sync.send(steps.report())
        return
    # What is not dumpable any more shows its keeper no namespaces, unless that is the machine's root.
    given = [os.open(b"/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)]
    if "memory" not in inside.held:
        given.append(sock_diag.open_here().detach())
    socket.send_fds(inside.sync, [steps.report()], given)
    for fd in given:
        os.close(fd)


def _become_spare(inside: Inside, steps: Steps) -> Agents:
    prctl.set_parent_death_signal(signal.SIGKILL)
    steps.begin("shed")
    for number in (0, 1, 2):
        os.dup2(inside.null, number)
    # A descriptor of a directory left here would be a way out.
    descriptors.close_all_but(inside.sync.fileno(), *inside.listeners.values(), *inside.joining.tasks, inside.program)
    steps.end("shed")
    steps.begin("unshare")
    namespaces.unshare(namespaces.NEWNET | namespaces.NEWIPC)
    netlink.set_loopback_up()
    steps.end("unshare")
    steps.begin("join")
    inside.joining.enter()
    for fd in inside.joining.tasks:
        os.close(fd)
    namespaces.unshare(namespaces.NEWCGROUP)
    steps.end("join")
    # The state directory is closed to the uids of sandboxes: what is needed of it is opened before they are taken.
    places = [os.open(inside.stage + b"/" + name, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for name in STAGED]
    dev = mounts.open_tree(inside.dev_tree, recursive=not inside.root_mode)
    _become_root_inside(inside, steps)
    steps.begin("stage")
    writable_proc = _stage(inside, places, dev)
    if not inside.root_mode:
        _shares.bound_counts(writable_proc)
    if "memory" not in inside.held:
        _shares.bound_ipc(writable_proc)
    steps.end("stage")
    steps.begin("agent")
    agents = _conceive(inside, writable_proc)
    steps.end("agent")
    steps.begin("drop")
    caps.drop_all()
    # From here on its end does not follow from its keeper's, if there is a plan by then: see `_doze`.
    prctl.set_parent_death_signal(0)
    steps.end("drop")
    return agents


def _become_root_inside(inside: Inside, steps: Steps) -> None:
    # The keeper writes the id maps meanwhile; the end of the stream means that it is dead.
    if not inside.sync.recv(1):
        raise ConnectionError("the keeper went away")
    steps.begin("identity")
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    try:
        os.setgroups([])
    except PermissionError:
        pass  # an ordinary user's namespace may not: the kernel requires setgroups to be denied there
    prctl.set_parent_death_signal(signal.SIGKILL)  # a change of credentials clears it
    steps.end("identity")


def _stage(inside: Inside, places: list[int], dev: int) -> int:
    """Mounts on the stage whatever no plan has a say in. Returns a mount of /proc that can be written."""
    to_dev, to_proc, to_tmp = places
    mounts.move_mount(dev, to_dev)
    # The machine has 4096 for all (kernel.pty.max): without a ceiling one sandbox leaves none to the others.
    options = (("newinstance", None), ("ptmxmode", "0666"), ("mode", "0620"), ("max", str(_TERMINALS)))
    _mount("devpts", options, mounts.NOSUID | mounts.NOEXEC, dev, b"pts")
    # How large these may grow is set with the plan.
    options = (("mode", "1777"), ("size", "4096"), ("nr_inodes", "16"))
    _mount("tmpfs", options, mounts.NOSUID | mounts.NODEV, dev, b"shm")
    _mount("tmpfs", options, mounts.NOSUID | mounts.NODEV, to_tmp, b"")
    # Read-only as a whole: covers /proc/sys, sysrq-trigger, irq, pressure and whatever a later kernel adds.
    proc_mount = mounts.fs_mount("proc", (), NOTHING | mounts.RDONLY)
    mounts.move_mount(proc_mount, to_proc)
    for name in inside.masks:
        mounts.bind(b"null", proc_mount, name, source_dir_fd=dev)
    for fd in (*places, dev, proc_mount):
        os.close(fd)
    return mounts.fs_mount("proc", (), NOTHING)


def _mount(fstype: str, options: tuple[mounts.Option, ...], attributes: int, dir_fd: int, path: bytes) -> None:
    fd = mounts.fs_mount(fstype, options, attributes)
    mounts.move_mount(fd, dir_fd, path)
    os.close(fd)


def _conceive(inside: Inside, writable_proc: int) -> Agents:
    prctl.set_no_new_privileges()
    # For the first agent, whose id maps the kernel lets us write only so; nothing foreign runs yet.
    prctl.set_dumpable(True)
    agents = Agents(
        inside.sync,
        root_mode=inside.root_mode,
        whole=inside.whole,
        held=inside.held,
        filter=inside.filter,
        landlock_abi=inside.landlock_abi,
        proc=writable_proc,
        listeners={name: socket.socket(fileno=fd) for name, fd in inside.listeners.items()},
        program=inside.program,
        steps=Steps(inside.fault),
    )
    agents.conceive()
    prctl.set_dumpable(False)
    return agents


# -- pid 1


def _doze(inside: Inside, agents: Agents) -> JailPlan:
    """Sleeps until there is something that only pid 1 can do, and returns the plan that it lives by.

    Most sandboxes come and go without. A process that only sleeps copies none of the stem's memory.
    The plan is not even read: that the keeper is gone, an agent is dead, a connection is there, or the deadline
    has come, is all that wakes it.
    """
    poll = select.poll()
    poll.register(inside.sync, 0)  # its end
    for name, listener in agents.listeners.items():
        if name != "user":
            poll.register(listener, select.POLLIN)
    poll.register(pidfd.open(agents.first), select.POLLIN)
    poll.register(_hear_of_children(), select.POLLIN)  # commands may stop their agent
    seconds = _DOZE_SECONDS
    while not poll.poll(seconds * 1000):
        plan = _read_plan(inside, socket.MSG_PEEK)
        if plan is not None:
            left = plan.deadline - proc.boottime()
            if left <= 0:
                break  # `_serve` ends it, unless it was paused and its new deadline has been sent
            seconds = min(left, _LONGEST_DOZE_SECONDS)
    plan = _read_plan(inside, 0)
    if plan is None or _read(inside, 0) != COMMITTED:
        os._exit(0)  # a spare that nobody needs any more, or a sandbox that was never finished
    return plan


def _hear_of_children() -> int:
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, _note)  # without a handler nothing is written
    return reader


def _note(number: int, frame: object) -> None: ...


def _read_plan(inside: Inside, flags: int) -> JailPlan | None:
    data = _read(inside, flags)
    return JailPlan.unpack(data) if data else None


def _read(inside: Inside, flags: int) -> bytes:
    try:
        return inside.sync.recv(_LARGEST_MESSAGE, flags | socket.MSG_DONTWAIT)
    except OSError:
        return b""


def _serve(inside: Inside, plan: JailPlan, agents: Agents) -> NoReturn:
    agents.plan = plan
    listeners = {name: listener for name, listener in agents.listeners.items() if name != "init"}
    config = guest.InitConfig(
        control=agents.listeners["init"],
        agents=listeners,
        deadline=plan.deadline,
        grace_seconds=_GRACE_SECONDS,
        frail=plan.kind != JAIL,
    )
    guest.run_init(config, agents.start, _look_again, keep=(inside.sync.fileno(), *agents.descriptors()))


def _look_again() -> None:
    signal.raise_signal(signal.SIGCHLD)  # what became of the agent while nobody watched
