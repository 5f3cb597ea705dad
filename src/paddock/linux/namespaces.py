"""Namespaces: entering new ones by clone(2), clone3(2), unshare(2), and the id maps of user namespaces."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import NamedTuple

from paddock.linux import _files
from paddock.linux._syscall import NR, call, call_locked, failure

# include/uapi/linux/sched.h
NEWTIME = 0x80
NEWNS = 0x0002_0000
NEWCGROUP = 0x0200_0000
NEWUTS = 0x0400_0000
NEWIPC = 0x0800_0000
NEWUSER = 0x1000_0000
NEWPID = 0x2000_0000
NEWNET = 0x4000_0000
PARENT = 0x8000
"""CLONE_PARENT: not a child of the caller, but of the caller's parent, which has to wait for it."""

_CLONE_PIDFD = 0x1000
_CLONE_INTO_CGROUP = 0x2_0000_0000
_WALL = 0x4000_0000  # waitpid: also children whose exit signal is not SIGCHLD
# struct clone_args of clone3(2): flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls,
# set_tid, set_tid_size, cgroup
_CLONE_ARGS = struct.Struct("=11Q")

# What os.fork does around its system call, so that the child has sound interpreter locks (C API, "PyOS_BeforeFork").
_before_fork = ctypes.pythonapi.PyOS_BeforeFork
_after_fork_parent = ctypes.pythonapi.PyOS_AfterFork_Parent
_after_fork_child = ctypes.pythonapi.PyOS_AfterFork_Child


class IdMap(NamedTuple):
    """`length` ids from `inside` on are `outside` and following in the parent namespace (user_namespaces(7))."""

    inside: int
    outside: int
    length: int


def clone(flags: int) -> int:
    """Forks into new namespaces: the child's pid, and 0 in the child, as os.fork does.

    clone(2) with SIGCHLD and no new stack. The child must end by `os._exit` in a `finally`, whatever happens: an
    exception that escapes would go on in a copy of its parent. In a program with threads it takes one fork(2) more.
    """
    if _has_threads() and not flags & PARENT:
        return _hand_over(lambda: clone(flags | PARENT))
    return _fork(NR.CLONE, flags | signal.SIGCHLD, None, "clone")


def clone_into(flags: int, cgroup_fd: int) -> tuple[int, int]:
    """As `clone`, into the (v2) cgroup whose directory is `cgroup_fd`; returns pid and pidfd, (0, -1) in the child.

    clone3(2) with CLONE_INTO_CGROUP (Linux 5.7) and CLONE_PIDFD.
    """
    if _has_threads() and not flags & PARENT:
        pid = _hand_over(lambda: clone_into(flags | PARENT, cgroup_fd)[0])
        return (pid, os.pidfd_open(pid)) if pid else (0, -1)
    pidfd = ctypes.create_string_buffer(4)
    flags |= _CLONE_INTO_CGROUP | _CLONE_PIDFD
    exit_signal = 0 if flags & PARENT else signal.SIGCHLD  # with PARENT it is the caller's own, and none may be named
    arguments = ctypes.create_string_buffer(
        _CLONE_ARGS.pack(flags, ctypes.addressof(pidfd), 0, 0, exit_signal, 0, 0, 0, 0, 0, cgroup_fd),
        _CLONE_ARGS.size,
    )
    pid = _fork(NR.CLONE3, ctypes.addressof(arguments), _CLONE_ARGS.size, "clone3")
    return (pid, int.from_bytes(pidfd.raw, "little")) if pid else (0, -1)


def _fork(number: int, first: int, second: int | None, what: str) -> int:
    pid = -1
    _before_fork()
    try:
        pid = call_locked(number, first, second, what=what)
    finally:
        if pid == 0:
            _after_fork_child()
        else:
            _after_fork_parent()
    return pid


def _has_threads() -> bool:
    return len(sys._current_frames()) > 1  # pyright: ignore[reportPrivateUsage] (documented, and the only way)


def _hand_over(fork: Callable[[], int]) -> int:
    """As `fork`, which has CLONE_PARENT, by a process in between that has no threads.

    A thread that wants the interpreter lock asks its holder to let go, and who is asked waits until somebody else has
    taken it (ceval_gil.h, FORCE_SWITCHING). A child that is born with such a question waits for ever: there is nobody
    else. os.fork answers it before any Python runs; between a system call of ours and PyOS_AfterFork_Child some does.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of what this is made for
        between = os.fork()
    if between == 0:
        pid = -1
        try:
            pid = fork()
            if pid:
                os.write(writer, b"%d" % pid)
        except OSError as error:
            os.write(writer, b"%d" % -(error.errno or errno.EIO))
        finally:
            if pid:
                os._exit(0)
        os.close(reader)
        os.close(writer)
        return 0
    os.close(writer)
    try:
        said = int(os.read(reader, 32) or -errno.EIO)
    finally:
        os.close(reader)
        os.waitpid(between, 0)
    if said < 0:
        raise failure(-said, "clone")
    return said


def unshare(flags: int) -> None:
    """Moves the caller into new namespaces (unshare(2)); NEWPID concerns its children only."""
    call(NR.UNSHARE, flags, what=("unshare", hex(flags)))


def setns(fd: int, flags: int = 0) -> None:
    """Moves the caller into the namespace `fd`, or into those of a pidfd that `flags` name (setns(2))."""
    call(NR.SETNS, fd, flags, what=("setns", hex(flags)))


def set_hostname(name: bytes) -> None:
    """sethostname(2) of this UTS namespace; at most 64 bytes."""
    call(NR.SETHOSTNAME, name, len(name), what=("sethostname", name))


def write_id_maps(
    pid: int,
    uid_maps: Iterable[IdMap],
    gid_maps: Iterable[IdMap],
    *,
    deny_setgroups: bool = False,
    proc_fd: int | None = None,
) -> None:
    """Writes the id maps of the user namespace of `pid`, once and for all (user_namespaces(7)).

    Without CAP_SETGID in the parent namespace, `deny_setgroups` must be true and a map is one line with the
    writer's own id.
    """
    directory = b"/proc/%d" % pid if proc_fd is None else b"%d" % pid
    if deny_setgroups:
        _files.write(directory + b"/setgroups", b"deny", proc_fd)
    _files.write(directory + b"/uid_map", _lines(uid_maps), proc_fd)
    _files.write(directory + b"/gid_map", _lines(gid_maps), proc_fd)


def _lines(maps: Iterable[IdMap]) -> bytes:
    return b"".join(b"%d %d %d\n" % line for line in maps)


def read_uid_map(pid: int) -> list[IdMap]:
    """The uid map of the user namespace of `pid`, as the caller's own namespace shows it."""
    lines = _files.read(b"/proc/%d/uid_map" % pid).splitlines()
    return [IdMap(*map(int, line.split())) for line in lines]


def id_mapping_namespace(uid_maps: Iterable[IdMap], gid_maps: Iterable[IdMap]) -> int:
    """The descriptor of a user namespace with these maps and nobody in it: for idmapped mounts.

    The process that it takes to make one has no exit signal, so that no handler of SIGCHLD and no `waitpid(-1)`
    ever sees it; it is gone when this returns. For programs whose other threads wait (see `_hand_over`): what is
    handed over cannot be without that signal.
    """
    hold, release = os.pipe()
    try:
        pid = _fork(NR.CLONE, NEWUSER, None, "clone a user namespace")
        if pid == 0:
            try:
                os.close(release)
                os.read(hold, 1)
            finally:
                os._exit(0)
        try:
            write_id_maps(pid, uid_maps, gid_maps)
            return os.open(b"/proc/%d/ns/user" % pid, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(release)
            release = -1
            os.waitpid(pid, _WALL)
    finally:
        os.close(hold)
        if release != -1:
            os.close(release)
