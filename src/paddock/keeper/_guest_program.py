"""The native guest as a sealed file in memory: nobody can write what is executed, and nobody inside read it.

It has no path, so that it can be executed in any mount namespace. The kernel makes a process non-dumpable from the
start that executes what it may not read (execve(2)).
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from typing import NamedTuple, NoReturn

from paddock.linux import descriptors

_KEEPER, _ABOVE = 7, 20  # as native/jail.h has it, and above all that is given
_EXECUTABLE = 0x10  # MFD_EXEC, Linux 6.3
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_REFUSED = 125  # of a start without a socket


def open_program(path: str) -> int:
    """A descriptor of a copy. OSError: it can't be executed here."""
    with open(path, "rb") as file:
        content = file.read()
    memory = _create()
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(content)
        os.fchmod(memory, 0o111)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
        # Not the one that is open for writing: what is could not be executed (ETXTBSY).
        program = os.open(f"/proc/self/fd/{memory}", os.O_PATH | os.O_CLOEXEC)
    finally:
        os.close(memory)
    try:
        _try(program)
    except BaseException:
        os.close(program)
        raise
    return program


def _create() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("paddock-guest", flags | _EXECUTABLE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create("paddock-guest", flags)


def _try(program: int) -> None:
    """Once, so that no sandbox finds out: another machine's program, memory that may not be executed."""
    pid = os.fork()
    if pid == 0:
        try:
            descriptors.close_all_but(program)
            _execute(program)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code != _REFUSED:
        raise OSError(errno.ENOEXEC, f"the native guest cannot be executed: it ended with {code}")


class Spawning(NamedTuple):
    """The process that jails are cloned from, a child of the caller."""

    pid: int
    peer: socket.socket


def spawn(program: int, null: int) -> Spawning:
    """It has no other descriptor than its stream and null. OSError. The caller has one thread."""
    peer, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            kept = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for fd in (program, theirs.fileno())]
            for number in (0, 1, 2):
                os.dup2(null, number)
            os.dup2(kept[1], _KEEPER)
            descriptors.close_all_but(_KEEPER, kept[0])
            _execute(kept[0])
        finally:
            os._exit(1)
    theirs.close()
    return Spawning(pid, peer)


def _execute(program: int) -> NoReturn:
    os.execve(program, ["paddock"], {})  # noqa: S606 (there is no shell to want)
