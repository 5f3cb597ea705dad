"""Load the native guest (`native/`) and run the spawner: the process that clones jails.

The guest is a sealed file in memory, or a file in a file system without a mount point. It can't be written, nor read
from inside. It has no path, so that any mount namespace can execute it. The kernel makes a process that executes an
unreadable file non-dumpable from the start (execve(2)).

A clone shares all memory until one side writes, which copies page by page. A Python process writes everywhere all the
time. The spawner is a native process of few pages, so its clones cost little.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from paddock.linux import children, descriptors, mounts, namespaces
from paddock.linux.descriptors import closing
from paddock.supervisor._errors import JailError
from paddock.supervisor._namespaces import open_of
from paddock.wire import close_all
from paddock.wire.guest import Spawn, Spawned, SpawnFlags

if TYPE_CHECKING:
    from paddock.supervisor._context import SupervisorContext

_ANSWER_BYTES = 64
_NAME = "paddock-guest"
_SUPERVISOR, _ABOVE = 7, 20  # as native/jail.h has it, and above all that is given
_EXECUTABLE = 0x10  # MFD_EXEC, Linux 6.3
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_REFUSED = 125  # of a start without a socket


def open_program(path: str) -> int:
    """Return a descriptor of a copy in memory; or in a separate file system, if `vm.memfd_noexec` or a security module
    refuses that. Raises OSError if neither can be executed here."""
    with open(path, "rb") as file:
        content = file.read()
    try:
        return _tried(_in_memory(content))
    except OSError:
        return _tried(_in_tmpfs(content))


def is_in_memory(program: int) -> bool:
    return os.readlink(f"/proc/self/fd/{program}").startswith("/memfd:")


def _in_memory(content: bytes) -> int:
    with closing(_create()) as memory:
        with open(memory, "wb", closefd=False) as file:
            file.write(content)
        os.fchmod(memory, 0o111)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
        # Not the one that is open for writing: what is could not be executed (ETXTBSY).
        return os.open(f"/proc/self/fd/{memory}", os.O_PATH | os.O_CLOEXEC)


def _in_tmpfs(content: bytes) -> int:
    """Have a child make it: an ordinary user can mount only in a user namespace, and the caller is in none yet."""

    def make() -> list[int]:
        if os.getuid():
            namespaces.unshare_as(0, namespaces.NEWNS)
        place = mounts.fs_mount("tmpfs", (("mode", "0500"), ("size", "4m")), mounts.NOSUID | mounts.NODEV)
        with open(os.open(_NAME, os.O_CREAT | os.O_WRONLY, 0o111, dir_fd=place), "wb") as file:
            file.write(content)
        mounts.set_attributes(place, set=mounts.RDONLY)
        return [os.open(_NAME, os.O_PATH, dir_fd=place)]

    try:
        return descriptors.of_child(make)[0]
    except ChildProcessError as error:
        why = f"the native guest cannot be executed: no file system can be made for it ({error.strerror})"
        raise OSError(errno.ENOEXEC, why) from None


def _create() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(_NAME, flags | _EXECUTABLE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(_NAME, flags)


def _tried(program: int) -> int:
    """Execute it once, so that a program of another architecture, or non-executable memory, shows here and not in a
    sandbox."""
    pid = children.fork(lambda: _execute(program), program)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code != _REFUSED:
        os.close(program)
        raise OSError(errno.ENOEXEC, f"the native guest cannot be executed: it ended with {code}")
    return program


class Spawning(NamedTuple):
    """Hold the spawner, a child of the caller."""

    pid: int
    peer: socket.socket


def spawn(program: int, null: int) -> Spawning:
    """Start the spawner with its socket and /dev/null, and no other descriptor. Raises OSError. The caller has one
    thread."""
    peer, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            kept = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for fd in (program, theirs.fileno())]
            for number in (0, 1, 2):
                os.dup2(null, number)
            os.dup2(kept[1], _SUPERVISOR)
            descriptors.close_all_but(_SUPERVISOR, kept[0])
            _execute(kept[0])
        finally:
            os._exit(1)
    theirs.close()
    return Spawning(pid, peer)


def _execute(program: int) -> NoReturn:
    os.execve(program, ["paddock"], {})  # noqa: S606 (without a shell on purpose)


class Spawner:
    """Clone children of the supervisor, which ends when its spawner does. The next supervisor takes over.

    A spawner that dies before its answer may leave a child of which nothing else is known. And an ordinary user's
    spawner starts before the supervisor enters its user namespace. The kernel gives the files of a non-dumpable process
    to root of the namespace in which it was executed (proc(5)). Root of the supervisor's namespace is the user, who
    runs commands inside.
    """

    def __init__(self, context: SupervisorContext) -> None:
        """Start it. The caller has one thread, and SIGCHLD is not handled."""
        early = context.spawning
        self._process = early or spawn(context.program, context.null)
        names = () if early is None else ("user", "mnt", "uts")
        spaces = [open_of("self", name) for name in names]
        with contextlib.suppress(ConnectionError):  # it has died: the next request gets the error
            socket.send_fds(self._process.peer, [context.orders], spaces)
        close_all(spaces)

    def clone(
        self,
        sync: socket.socket,
        listeners: Sequence[int],
        joining: Sequence[int],
        *,
        unified: bool,
        base: int | None,
        fault: str,
    ) -> int:
        """Return the pid of a new child of the supervisor, which becomes a sandbox. Raises JailError.

        `listeners` are those of pid 1, of the user and of root. `joining` is `Group.joining`. Its last descriptor may
        be of the `unified` tree. `base` owns its user namespace; None: the supervisor
        does.
        """
        flags = SpawnFlags(0)
        fds = [sync.fileno(), *listeners, *joining]
        if unified:
            flags |= SpawnFlags.CGROUP
        if base is not None:
            flags |= SpawnFlags.OWNED
        order = Spawn(flags=flags, owner=base or 0, fault=fault.encode()).pack()
        try:
            socket.send_fds(self._process.peer, [order], fds)
            answer = self._process.peer.recv(_ANSWER_BYTES)
        except ConnectionError:
            answer = b""
        if not answer:
            self._end()
        spawned = Spawned.unpack(answer)
        if not spawned.pid:
            raise JailError(f"at the clone: {os.strerror(spawned.errno)}", spawned.errno)
        return spawned.pid

    def check(self) -> None:
        """End the supervisor if the spawner has died."""
        try:
            if self._process.peer.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                return
        except BlockingIOError:
            return
        except ConnectionError:
            pass
        self._end()

    def _end(self) -> NoReturn:
        print("the process that sandboxes are cloned from has died, and so does this one", file=sys.stderr)
        os._exit(1)

    def close(self) -> None:
        self._process.peer.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        os.waitpid(self._process.pid, 0)
