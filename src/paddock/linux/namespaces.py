"""Namespaces: entering new ones by unshare(2), those of others by setns(2), and the id maps of user namespaces."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

from paddock.linux import kernel_files
from paddock.linux.syscall import call, call_locked

# include/uapi/linux/sched.h
NEWNS = 0x0002_0000
NEWUTS = 0x0400_0000
NEWIPC = 0x0800_0000
NEWUSER = 0x1000_0000
NEWPID = 0x2000_0000
NEWNET = 0x4000_0000

_WALL = 0x4000_0000  # waitpid: also children whose exit signal is not SIGCHLD

# The same steps as os.fork around its system call, so that the child has sound interpreter locks (C API,
# "PyOS_BeforeFork").
_before_fork = ctypes.pythonapi.PyOS_BeforeFork
_after_fork_parent = ctypes.pythonapi.PyOS_AfterFork_Parent
_after_fork_child = ctypes.pythonapi.PyOS_AfterFork_Child


class IdMap(NamedTuple):
    """`length` ids from `inside` on are `outside` and following in the parent namespace (user_namespaces(7))."""

    inside: int
    outside: int
    length: int


def unshare(flags: int) -> None:
    """Move the caller into new namespaces (unshare(2)). NEWPID concerns its children only."""
    call("unshare", flags, what=("unshare", hex(flags)))


def unshare_as(inside: int, flags: int = 0) -> None:
    """Move the caller into a new user namespace, where its uid and gid are `inside`, and into the others of `flags`."""
    uid, gid = os.getuid(), os.getgid()
    unshare(NEWUSER | flags)
    write_id_maps(os.getpid(), (IdMap(inside, uid, 1),), (IdMap(inside, gid, 1),), deny_setgroups=True)


def setns(fd: int, flags: int = 0) -> None:
    """Move the caller into the namespace `fd`, or into those of a pidfd that `flags` name (setns(2))."""
    call("setns", fd, flags, what=("setns", hex(flags)))


def set_hostname(name: bytes) -> None:
    """Set the host name of this UTS namespace (sethostname(2)), at most 64 bytes."""
    call("sethostname", name, len(name), what=("sethostname", name))


def write_id_maps(
    pid: int,
    uid_maps: Iterable[IdMap],
    gid_maps: Iterable[IdMap],
    *,
    deny_setgroups: bool = False,
) -> None:
    """Write the id maps of the user namespace of `pid`, once and for all (user_namespaces(7)).

    Without CAP_SETGID in the parent namespace, `deny_setgroups` must be true and a map is one line with the writer's
    own id.
    """
    directory = b"/proc/%d" % pid
    if deny_setgroups:
        kernel_files.write(directory + b"/setgroups", b"deny")
    kernel_files.write(directory + b"/uid_map", _lines(uid_maps))
    kernel_files.write(directory + b"/gid_map", _lines(gid_maps))


def _lines(maps: Iterable[IdMap]) -> bytes:
    return b"".join(b"%d %d %d\n" % line for line in maps)


def read_uid_map(pid: int) -> list[IdMap]:
    """Return the uid map of the user namespace of `pid`, as the caller's own namespace shows it."""
    lines = kernel_files.read(b"/proc/%d/uid_map" % pid).splitlines()
    return [IdMap(*map(int, line.split())) for line in lines]


def id_mapping_namespace(uid_maps: Iterable[IdMap], gid_maps: Iterable[IdMap]) -> int:
    """Return the descriptor of an empty user namespace with these maps, for idmapped mounts."""
    return user_namespace(lambda pid: write_id_maps(pid, uid_maps, gid_maps))


def user_namespace(write_maps: Callable[[int], object]) -> int:
    """Return the descriptor of a new empty user namespace.

    `write_maps` gets the pid of a process in it.

    The helper process has no exit signal, so no handler of SIGCHLD and no `waitpid(-1)` ever sees it. It has ended when
    this returns. Other threads of the caller may wait, but not for the interpreter lock. The child would inherit their
    request for it, which no thread there answers (ceval_gil.h, FORCE_SWITCHING).
    """
    hold, release = os.pipe()
    try:
        pid = _clone(NEWUSER)
        if pid == 0:
            try:
                os.close(release)
                os.read(hold, 1)
            finally:
                os._exit(0)
        try:
            write_maps(pid)
            return os.open(b"/proc/%d/ns/user" % pid, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(release)
            release = -1
            os.waitpid(pid, _WALL)
    finally:
        os.close(hold)
        if release != -1:
            os.close(release)


def _clone(flags: int) -> int:
    pid = -1
    _before_fork()
    try:
        pid = call_locked("clone", flags, None, what="clone a user namespace")
    finally:
        if pid == 0:
            _after_fork_child()
        else:
            _after_fork_parent()
    return pid
