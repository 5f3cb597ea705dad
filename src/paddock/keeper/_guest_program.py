"""The native guest as a sealed file in memory: what is executed as an agent, nobody can write, and nobody inside read.

It has no path, so that it can be executed in any mount namespace. The kernel makes a process non-dumpable from the
start that executes what it may not read (execve(2)).
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import NoReturn

from paddock.linux import descriptors

_ENTRANCE, _SCORE, _ABOVE = 3, 6, 10  # as native/agent.h has them
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


def become(program: int, listener: int, oom_score: int) -> NoReturn:
    """The agent that serves `listener`, with no other descriptor than these and null. OSError.

    `oom_score` is this process's own oom_score_adj, open for reading and writing.
    """
    kept = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for fd in (program, listener, oom_score)]
    os.dup2(kept[1], _ENTRANCE)
    os.dup2(kept[2], _SCORE)
    descriptors.close_all_but(0, 1, 2, _ENTRANCE, _SCORE, kept[0])
    os.umask(0o022)
    _execute(kept[0])


def _execute(program: int) -> NoReturn:
    os.execve(program, ["paddock"], {})  # noqa: S606 (there is no shell to want)
