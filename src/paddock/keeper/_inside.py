"""What the cloned child does to become a sandbox, read from top to bottom: this *is* the containment.

It runs in a copy of the keeper's memory with everything imported. First it becomes a spare: it gives up the machine's
descriptors, namespaces and ids. When it is given a plan it builds its tree of mounts and ends in the guest's
`run_init`. It never returns and never lets an exception out.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
from dataclasses import dataclass
from typing import NoReturn

from paddock.guest import _everything as guest
from paddock.keeper._agents import Agents, limit
from paddock.keeper._plan import SAMPLE, JailPlan
from paddock.keeper._trace import Steps
from paddock.linux import caps, cgroups, descriptors, mounts, namespaces, netlink, openat2, prctl, rlimits, seccomp

NOTHING = mounts.NOSUID | mounts.NODEV | mounts.NOEXEC
_LARGEST_MESSAGE = 1 << 18
_TERMINALS = 128

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What the child inherits. Descriptors are the keeper's; those not named here are closed first of all."""

    root_mode: bool
    held: frozenset[str]
    sync: socket.socket
    joining: cgroups.Joining
    mount_point: bytes
    dev_tree: bytes
    masks: tuple[bytes, ...]
    null: int
    filter: seccomp.Filter
    landlock_abi: int
    fault: str


def listener_names(root_mode: bool) -> tuple[str, ...]:
    """The sockets of a sandbox. Without root's powers there is one identity inside."""
    return ("init", "user", "root") if root_mode else ("init", "user")


@dataclass(frozen=True, slots=True)
class Gifts:
    """Descriptors that come with a plan, in this order."""

    root: int
    usr: int | None
    mounts: list[int]
    listeners: dict[str, int]

    def pack(self) -> list[int]:
        return [fd for fd in (self.root, self.usr, *self.mounts, *self.listeners.values()) if fd is not None]

    @classmethod
    def unpack(cls, fds: list[int], *, usr: bool, mounts: int, names: tuple[str, ...]) -> Gifts:
        root, rest = fds[0], fds[1:]
        of_usr, rest = (rest[0], rest[1:]) if usr else (None, rest)
        return cls(root, of_usr, rest[:mounts], dict(zip(names, rest[mounts:], strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What a spare has at hand when its plan comes: directories and mounts, attached nowhere yet."""

    place: int
    dev: int
    terminals: int
    proc: int
    writable_proc: int
    agents: Agents


def become_sandbox(inside: Inside) -> NoReturn:
    """Never returns. A failure is told to the keeper as {"error", "errno", "after"} and ends the process."""
    steps = Steps(inside.fault)
    steps.voice = inside.sync
    try:
        ready = _become_spare(inside, steps)
        _say(steps, steps.report())
        try:
            _rehearse()
        except Exception:
            pass  # that is no reason to refuse the performance
        plan, gifts = _wait_for_plan(inside, steps)
        _fit_out(inside, ready, plan, gifts, steps)
        _serve(inside, plan, gifts, ready, steps)
    except BaseException as error:
        _report_failure(steps, error)
    finally:
        os._exit(1)


def _say(steps: Steps, message: bytes) -> None:
    assert steps.voice is not None
    steps.voice.send(message)


def _report_failure(steps: Steps, error: BaseException) -> None:
    done = list(steps.seconds)
    report = {
        "error": f"{type(error).__name__}: {error}",
        "errno": error.errno if isinstance(error, OSError) else None,
        "after": done[-1] if done else "clone",
    }
    try:
        _say(steps, json.dumps(report).encode())
    finally:
        os._exit(1)


# -- first part: a spare


def _become_spare(inside: Inside, steps: Steps) -> Ready:
    prctl.set_parent_death_signal(signal.SIGKILL)
    _shed(inside, steps)
    steps.begin("unshare")
    namespaces.unshare(namespaces.NEWNET | namespaces.NEWIPC | namespaces.NEWUTS)
    netlink.set_loopback_up()
    steps.end("unshare")
    steps.begin("join")
    inside.joining.enter()
    for fd in inside.joining.tasks:
        os.close(fd)
    namespaces.unshare(namespaces.NEWCGROUP)
    steps.end("join")
    # The state directory is closed to the uids of sandboxes: what is needed of it is opened before they are taken.
    place = os.open(inside.mount_point, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    dev = mounts.open_tree(inside.dev_tree, recursive=not inside.root_mode)
    _become_root_inside(steps)
    steps.begin("prepare")
    # Read-only as a whole: covers /proc/sys, sysrq-trigger, irq, pressure and whatever a later kernel adds.
    proc = mounts.fs_mount("proc", (), NOTHING | mounts.RDONLY)
    writable_proc = mounts.fs_mount("proc", (), NOTHING)
    # The machine has 4096 for all (kernel.pty.max): without a ceiling one sandbox leaves none to the others.
    options = (("newinstance", None), ("ptmxmode", "0666"), ("mode", "0620"), ("max", str(_TERMINALS)))
    terminals = mounts.fs_mount("devpts", options, mounts.NOSUID | mounts.NOEXEC)
    prctl.set_no_new_privileges()
    # For the first agent, whose id maps the kernel lets us write only so; nothing foreign runs yet.
    prctl.set_dumpable(True)
    steps.end("prepare")
    steps.begin("agent")
    assert steps.voice is not None
    agents = Agents(
        steps.voice,
        root_mode=inside.root_mode,
        held=inside.held,
        filter=inside.filter,
        landlock_abi=inside.landlock_abi,
        proc=writable_proc,
    )
    agents.conceive()
    steps.end("agent")
    return Ready(place=place, dev=dev, terminals=terminals, proc=proc, writable_proc=writable_proc, agents=agents)


def _shed(inside: Inside, steps: Steps) -> None:
    """Closes all that is not named: a descriptor of a directory left here would be a way out."""
    steps.begin("shed")
    for number in (0, 1, 2):
        os.dup2(inside.null, number)
    descriptors.close_all_but(inside.sync.fileno(), *inside.joining.tasks)
    steps.end("shed")


def _become_root_inside(steps: Steps) -> None:
    # The keeper writes the id maps meanwhile; the end of the stream means that it is dead.
    assert steps.voice is not None
    if not steps.voice.recv(1):
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


def _rehearse() -> None:
    rlimits.apply(rlimits.ResourceLimits(core_bytes=0, locked_bytes=8 << 20))
    JailPlan.unpack(SAMPLE)
    os.close(_place(b"proc"))
    os.close(mounts.fs_mount("tmpfs", (("mode", "1777"), ("size", "4096"), ("nr_inodes", "16"))))
    guest.rehearse_init()


# -- second part: a sandbox


def _wait_for_plan(inside: Inside, steps: Steps) -> tuple[JailPlan, Gifts]:
    assert steps.voice is not None
    data, ancillary, _, _ = steps.voice.recvmsg(_LARGEST_MESSAGE, 512, socket.MSG_CMSG_CLOEXEC)
    if not data:
        os._exit(0)  # not needed any more
    steps.restart()
    fds = array.array("i", ancillary[0][2])
    plan = JailPlan.unpack(data)
    return plan, Gifts.unpack(
        list(fds), usr=plan.host_usr, mounts=len(plan.mounts), names=listener_names(inside.root_mode)
    )


def _fit_out(inside: Inside, ready: Ready, plan: JailPlan, gifts: Gifts, steps: Steps) -> None:
    namespaces.set_hostname(plan.hostname.encode())
    _attach(inside, ready, plan, gifts, steps)
    steps.begin("pivot")
    mounts.pivot_into()
    steps.end("pivot")


def _attach(inside: Inside, ready: Ready, plan: JailPlan, gifts: Gifts, steps: Steps) -> None:
    """Builds the tree of mounts."""
    steps.begin("attach")
    mounts.move_mount(gifts.root, ready.place)
    os.fchdir(gifts.root)
    if gifts.usr is not None:
        local = mounts.open_tree(b"", _place(b"usr/local"))
        mounts.move_mount(gifts.usr, _place(b"usr"))
        mounts.move_mount(local, _place(b"usr/local"))
    steps.end("attach")
    steps.begin("dev")
    mounts.move_mount(ready.dev, _place(b"dev"))
    mounts.move_mount(ready.terminals, _place(b"dev/pts"))
    steps.end("dev")
    steps.begin("proc")
    mounts.move_mount(ready.proc, _place(b"proc"))
    for name in inside.masks:
        mounts.bind(b"dev/null", mounts.AT_FDCWD, b"proc/" + name)
    steps.end("proc")
    steps.begin("tmp")
    for path, size in ((b"dev/shm", plan.tmp_bytes // 2), (b"tmp", plan.tmp_bytes)):
        options = (("mode", "1777"), ("size", str(size)), ("nr_inodes", str(plan.inodes)))
        mounts.move_mount(mounts.fs_mount("tmpfs", options, mounts.NOSUID | mounts.NODEV), _place(path))
    steps.end("tmp")
    if plan.mounts:
        steps.begin("mounts")
        for mount, fd in sorted(zip(plan.mounts, gifts.mounts, strict=True), key=lambda pair: pair[0].target):
            mounts.move_mount(fd, _made_place(os.fsencode(mount.target).lstrip(b"/")))
        steps.end("mounts")


def _place(path: bytes) -> int:
    """The directory to mount on, found without any link: the tree may have been written by an earlier sandbox."""
    return openat2.open_beneath(mounts.AT_FDCWD, path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, symlinks=False)


def _made_place(path: bytes) -> int:
    """As `_place`, and makes what is missing of it."""
    parts = path.split(b"/")
    strict = os.umask(0o022)
    for depth in range(len(parts)):
        above = _place(b"/".join(parts[:depth]) or b".")
        try:
            os.mkdir(parts[depth], dir_fd=above)
        except FileExistsError:
            continue
        finally:
            os.close(above)
    os.umask(strict)
    return _place(path)


def _serve(inside: Inside, plan: JailPlan, gifts: Gifts, ready: Ready, steps: Steps) -> NoReturn:
    listeners = {name: socket.socket(fileno=fd) for name, fd in gifts.listeners.items()}
    control = listeners.pop("init")
    ready.agents.give(plan, listeners)
    steps.begin("limits")
    limit(plan, inside.held)
    steps.end("limits")

    def start(identity: str) -> int:
        try:
            return ready.agents.start(identity)
        except Exception as error:
            if steps.voice is not None:
                _report_failure(steps, error)  # the first one: without it there is no sandbox
            raise

    def done() -> None:
        try:
            steps.begin("drop")  # only now: it took them to write the maps of the agents' namespace
            caps.drop_all()
            prctl.set_dumpable(False)
            steps.end("drop")
            _say(steps, steps.report() if plan.trace else b"{}")
        except Exception as error:
            _report_failure(steps, error)
        assert steps.voice is not None
        prctl.set_parent_death_signal(0)  # from here on it outlives the keeper; its deadline is its own
        steps.voice.close()
        steps.voice = None

    assert steps.voice is not None
    config = guest.InitConfig(control=control, agents=listeners, deadline=plan.deadline)
    guest.run_init(config, start, done, keep=(steps.voice.fileno(), *ready.agents.descriptors()))
