"""What the cloned child does before it executes the native guest as pid 1, read from top to bottom.

It runs in a copy of the stem's memory with everything imported. It gives up the machine's descriptors, namespaces and
ids, stages the mounts that depend on nobody's plan, and executes. The rest of the containment is `native/jail.c`, and
what the keeper does from outside (`_fitting.py`). It never returns and never lets an exception out.
"""

from __future__ import annotations

import os
import signal
import socket
from typing import NamedTuple, NoReturn

from paddock.keeper import _guest_program as guest_program
from paddock.keeper._trace import Steps, report_failure
from paddock.linux import cgroups, descriptors, mounts, namespaces, netlink, prctl, sock_diag

NOTHING = mounts.NOSUID | mounts.NODEV | mounts.NOEXEC
STAGED = (b"dev", b"proc", b"tmp")  # directories below the stage
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


class Inside(NamedTuple):
    """What the child inherits. Descriptors not named here are closed first of all."""

    root_mode: bool
    held: frozenset[str]
    sync: socket.socket
    listeners: tuple[int, ...]
    joining: cgroups.Joining
    stage: bytes
    dev_tree: bytes
    masks: tuple[bytes, ...]
    null: int
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
        writable_proc = _become_spare(inside, steps)
        _tell(inside, steps)
        guest_program.become_init(inside.program, inside.sync.fileno(), writable_proc, inside.listeners)
    except BaseException as error:
        report_failure(steps, error)
    finally:
        os._exit(1)


def _tell(inside: Inside, steps: Steps) -> None:
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


def _become_spare(inside: Inside, steps: Steps) -> int:
    prctl.set_parent_death_signal(signal.SIGKILL)
    steps.begin("shed")
    for number in (0, 1, 2):
        os.dup2(inside.null, number)
    # A descriptor of a directory left here would be a way out.
    descriptors.close_all_but(inside.sync.fileno(), *inside.listeners, *inside.joining.tasks, inside.program)
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
    steps.end("stage")
    return writable_proc


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
