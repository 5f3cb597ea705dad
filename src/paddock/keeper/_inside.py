"""What the cloned child does to become a sandbox, read from top to bottom: this *is* the containment.

It runs in a copy of the keeper's memory with everything imported. It gives up one thing after the other and ends
in the guest's `run_init`; it never returns and never lets an exception out.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import socket
from dataclasses import dataclass
from typing import NoReturn

from paddock import guest
from paddock.keeper._agents import Agents
from paddock.keeper._plan import JailPlan
from paddock.keeper._trace import Steps
from paddock.linux import caps, cgroups, descriptors, mounts, namespaces, netlink, openat2, prctl, rlimits, seccomp

NOTHING = mounts.NOSUID | mounts.NODEV | mounts.NOEXEC

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


@dataclass(frozen=True, slots=True)
class Inside:
    """What the child inherits. Descriptors are the keeper's; those not named here are closed."""

    plan: JailPlan
    root_mode: bool
    sync: socket.socket
    mount_point: bytes
    dev_tree: bytes
    masks: tuple[bytes, ...]
    null: int
    filter: seccomp.Filter
    landlock_abi: int


def listener_names(root_mode: bool) -> tuple[str, ...]:
    """The sockets of a sandbox. Without root's powers there is one identity inside."""
    return ("init", "user", "root") if root_mode else ("init", "user")


@dataclass(frozen=True, slots=True)
class Gifts:
    """Descriptors that the keeper makes while the child makes its namespaces, and sends in this order."""

    root: int
    usr: int | None
    listeners: dict[str, int]
    joining: cgroups.Joining

    def pack(self) -> list[int]:
        return [fd for fd in (self.root, self.usr, *self.listeners.values(), *self.joining.tasks) if fd is not None]

    @classmethod
    def unpack(cls, fds: list[int], *, usr: bool, names: tuple[str, ...]) -> Gifts:
        root, rest = fds[0], fds[1:]
        of_usr, rest = (rest[0], rest[1:]) if usr else (None, rest)
        listeners = dict(zip(names, rest, strict=False))
        return cls(root, of_usr, listeners, cgroups.Joining(None, tuple(rest[len(names) :])))


def become_sandbox(inside: Inside) -> NoReturn:
    """Never returns. A failure is told to the keeper as {"error", "errno", "step"} and ends the process."""
    steps = Steps(inside.plan.fault)
    steps.voice = inside.sync
    try:
        _enter(inside, steps)
    except BaseException as error:
        _report_failure(steps, error)
    finally:
        os._exit(1)


def _report_failure(steps: Steps, error: BaseException) -> None:
    done = list(steps.seconds)
    report = {
        "error": f"{type(error).__name__}: {error}",
        "errno": error.errno if isinstance(error, OSError) else None,
        "after": done[-1] if done else "clone",
    }
    try:
        assert steps.voice is not None
        steps.voice.send(json.dumps(report).encode())
    finally:
        os._exit(1)


def _enter(inside: Inside, steps: Steps) -> NoReturn:
    prctl.set_parent_death_signal(signal.SIGKILL)
    _new_namespaces(inside, steps)
    gifts = _wait_for_gifts(inside, steps)
    _join_cgroups(inside, gifts, steps)
    # The state directory is closed to the uids of sandboxes: what is needed of it is opened before they are taken.
    place = os.open(inside.mount_point, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    dev = mounts.open_tree(inside.dev_tree, recursive=not inside.root_mode)
    _become_root_inside(steps)
    proc = _attach(inside, gifts, place, dev, steps)
    _pivot(steps)
    kept = _keep_only(inside, gifts, proc, steps)
    _limit(inside.plan, inside.root_mode, steps)
    prctl.set_no_new_privileges()
    # Before the first agent, whose id maps the kernel lets us write only then; nothing foreign runs yet.
    prctl.set_dumpable(True)
    _serve(inside, kept, steps)


def _join_cgroups(inside: Inside, gifts: Gifts, steps: Steps) -> None:
    steps.begin("join")
    gifts.joining.enter()
    if inside.root_mode:
        namespaces.unshare(namespaces.NEWCGROUP)
    steps.end("join")


def _new_namespaces(inside: Inside, steps: Steps) -> None:
    steps.begin("unshare")
    namespaces.unshare(namespaces.NEWNET | namespaces.NEWIPC | namespaces.NEWUTS)
    netlink.set_loopback_up()
    namespaces.set_hostname(inside.plan.hostname.encode())
    steps.end("unshare")


def _wait_for_gifts(inside: Inside, steps: Steps) -> Gifts:
    # The keeper has written the id maps and built the layers meanwhile; the end of the stream means it is dead.
    message, fds, _, _ = socket.recv_fds(inside.sync, 1, 32, socket.MSG_CMSG_CLOEXEC)
    if not message:
        raise ConnectionError("the keeper went away")
    steps.end("wait")
    return Gifts.unpack(fds, usr=inside.plan.host_usr, names=listener_names(inside.root_mode))


def _become_root_inside(steps: Steps) -> None:
    steps.begin("identity")
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    try:
        os.setgroups([])
    except PermissionError:
        pass  # an ordinary user's namespace may not: the kernel requires setgroups to be denied there
    prctl.set_parent_death_signal(signal.SIGKILL)  # a change of credentials clears it
    steps.end("identity")


def _attach(inside: Inside, gifts: Gifts, place: int, dev: int, steps: Steps) -> int:
    """Builds the tree of mounts. Returns a /proc that can be written, attached nowhere."""
    steps.begin("attach")
    mounts.move_mount(gifts.root, place)
    os.fchdir(gifts.root)
    if gifts.usr is not None:
        local = mounts.open_tree(b"", _place(b"usr/local"))
        mounts.move_mount(gifts.usr, _place(b"usr"))
        mounts.move_mount(local, _place(b"usr/local"))
    steps.end("attach")
    steps.begin("dev")
    mounts.move_mount(dev, _place(b"dev"))
    terminals = mounts.fs_mount(
        "devpts", (("newinstance", None), ("ptmxmode", "0666"), ("mode", "0620")), mounts.NOSUID | mounts.NOEXEC
    )
    mounts.move_mount(terminals, _place(b"dev/pts"))
    steps.end("dev")
    steps.begin("proc")
    writable = _attach_proc(inside)
    steps.end("proc")
    steps.begin("tmp")
    for path, size in ((b"dev/shm", inside.plan.tmp_bytes // 2), (b"tmp", inside.plan.tmp_bytes)):
        options = (("mode", "1777"), ("size", str(size)), ("nr_inodes", str(inside.plan.inodes)))
        mounts.move_mount(mounts.fs_mount("tmpfs", options, mounts.NOSUID | mounts.NODEV), _place(path))
    steps.end("tmp")
    return writable


def _place(path: bytes) -> int:
    """The directory to mount on, found without any link: the tree may have been written by an earlier sandbox."""
    return openat2.open_beneath(mounts.AT_FDCWD, path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, symlinks=False)


def _attach_proc(inside: Inside) -> int:
    # Read-only as a whole: covers /proc/sys, sysrq-trigger, irq, pressure and whatever a later kernel adds.
    mounts.move_mount(mounts.fs_mount("proc", (), NOTHING | mounts.RDONLY), _place(b"proc"))
    for name in inside.masks:
        mounts.bind(b"dev/null", mounts.AT_FDCWD, b"proc/" + name)
    return mounts.fs_mount("proc", (), NOTHING)


def _pivot(steps: Steps) -> None:
    steps.begin("pivot")
    mounts.pivot_into()
    steps.end("pivot")


def _limit(plan: JailPlan, root_mode: bool, steps: Steps) -> None:
    steps.begin("limits")
    rlimits.apply(
        rlimits.ResourceLimits(
            open_files=plan.open_files,
            processes=None if root_mode else plan.processes,  # the pids cgroup is better: it counts its refusals
            file_bytes=plan.disk_bytes,
            locked_bytes=8 << 20,
        )
    )
    if not root_mode:
        rlimits.set_limit(resource.RLIMIT_DATA, plan.memory_bytes)  # no cgroup: at least no single process is a hog
    steps.end("limits")


@dataclass(frozen=True, slots=True)
class _Kept:
    sync: socket.socket
    proc: int
    listeners: dict[str, socket.socket]


def _keep_only(inside: Inside, gifts: Gifts, proc: int, steps: Steps) -> _Kept:
    """Closes all but the sockets and the /proc: a descriptor of another directory would be a way out."""
    steps.begin("descriptors")
    for number in (0, 1, 2):
        os.dup2(inside.null, number)
    kept = [inside.sync.fileno(), proc, *gifts.listeners.values()]
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in kept]
    low: list[int] = []
    for index, fd in enumerate(high):
        os.dup2(fd, 3 + index, inheritable=False)
        low.append(3 + index)
    descriptors.close_from(3 + len(low))
    inside.sync.detach()
    sync, proc, *listeners = low
    steps.voice = socket.socket(fileno=sync)
    steps.end("descriptors")
    sockets = [socket.socket(fileno=fd) for fd in listeners]
    return _Kept(steps.voice, proc, dict(zip(gifts.listeners, sockets, strict=True)))


def _serve(inside: Inside, kept: _Kept, steps: Steps) -> NoReturn:
    agents = Agents(
        inside.plan,
        inside.root_mode,
        inside.filter,
        kept.listeners,
        kept.sync,
        landlock_abi=inside.landlock_abi,
        proc=kept.proc,
    )

    def start(identity: str) -> int:
        try:
            return agents.start(identity)
        except Exception as error:
            if steps.voice is not None:
                _report_failure(steps, error)  # the first one: without it there is no sandbox
            raise

    def ready() -> None:
        try:
            steps.begin("drop")  # only now: the id maps of the first agent take capabilities, and its files be seen
            caps.drop_all()
            prctl.set_dumpable(False)
            steps.end("drop")
            kept.sync.send(_report(inside.plan, steps))
        except Exception as error:
            _report_failure(steps, error)
        prctl.set_parent_death_signal(0)  # from here on it outlives the keeper; its deadline is its own
        kept.sync.close()
        steps.voice = None

    by_identity = {name: listener for name, listener in kept.listeners.items() if name != "init"}
    config = guest.InitConfig(
        control=kept.listeners["init"],
        agents=by_identity,
        deadline=inside.plan.deadline,
    )
    guest.run_init(config, start, ready, keep=(kept.sync.fileno(), kept.proc))


def _report(plan: JailPlan, steps: Steps) -> bytes:
    """Where the time went, if anybody asked: even that costs pages of memory."""
    if not plan.trace:
        return b"{}"
    return json.dumps({"seconds": steps.seconds, "faults": steps.faults}).encode()
