"""Settings of the calling process by prctl(2) (include/uapi/linux/prctl.h)."""

from __future__ import annotations

import os
import signal

from paddock.linux.syscall import Argument, call

_SET_PDEATHSIG = 1
_SET_DUMPABLE = 4
_SET_NAME = 15
_SET_SECUREBITS = 28
_SET_NO_NEW_PRIVS = 38

# include/uapi/linux/securebits.h. Each has a lock in the bit above it.
SECBIT_NO_SETUID_FIXUP = 1 << 2


def prctl(option: int, a: Argument = 0, b: int = 0, *, what: str) -> int:
    """Make one call of prctl(2). Unused arguments are 0, as the kernel requires."""
    return call("prctl", option, a, b, 0, 0, what=what)


def set_parent_death_signal(number: int) -> None:
    """Make the kernel send this signal when the thread that made the caller ends. 0: none.

    A change of uid or gid and the exec of a set-user-id program clear it, so set it after those. Compare os.getppid()
    afterwards, because the parent may have ended before.
    """
    prctl(_SET_PDEATHSIG, number, what="prctl parent death signal")


def end_with(parent: int) -> None:
    """Have the kernel kill the caller when the process `parent`, which made it, ends. That may have been before."""
    set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def set_dumpable(dumpable: bool) -> None:
    """Set whether others of the same uid may ptrace the caller, read its /proc files, or dump its core.

    A change of uid or gid makes it false. The caller's own files in /proc then belong to root.
    """
    prctl(_SET_DUMPABLE, int(dumpable), what="prctl dumpable")


def set_no_new_privileges() -> None:
    """No exec of the caller or its children grants anything from now on: no set-user-id, no file capabilities."""
    prctl(_SET_NO_NEW_PRIVS, 1, what="prctl no_new_privs")


def set_secure_bits(bits: int) -> None:
    """Replace the SECBIT_* of the caller (capabilities(7)). Needs CAP_SETPCAP."""
    prctl(_SET_SECUREBITS, bits, what="prctl securebits")


def set_name(name: bytes) -> None:
    """Set the name of the calling thread in ps, at most 15 bytes."""
    prctl(_SET_NAME, name[:15] + b"\0", what="prctl name")
