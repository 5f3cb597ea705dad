"""Settings of the calling process by prctl(2) (include/uapi/linux/prctl.h)."""

from __future__ import annotations

from paddock.linux._syscall import NR, Argument, call

_SET_PDEATHSIG = 1
_GET_DUMPABLE = 3
_SET_DUMPABLE = 4
_SET_NAME = 15
_GET_SECUREBITS = 27
_SET_SECUREBITS = 28
_SET_CHILD_SUBREAPER = 36
_SET_NO_NEW_PRIVS = 38
_GET_NO_NEW_PRIVS = 39
_SET_MDWE = 65

# include/uapi/linux/securebits.h; each has a lock in the bit above it
SECBIT_NOROOT = 1 << 0
SECBIT_NO_SETUID_FIXUP = 1 << 2
SECBIT_KEEP_CAPS = 1 << 4
SECBIT_NO_CAP_AMBIENT_RAISE = 1 << 6


def prctl(option: int, a: Argument = 0, b: int = 0, *, what: str) -> int:
    """One call of prctl(2); the arguments that an option does not use are 0, as the kernel demands."""
    return call(NR.PRCTL, option, a, b, 0, 0, what=what)


def set_parent_death_signal(number: int) -> None:
    """Has the kernel send this signal when the thread that made the caller ends; 0: none.

    Cleared by a change of uid or gid and by the exec of a set-user-id program: set it after those. If the parent
    may be gone already, compare os.getppid() afterwards.
    """
    prctl(_SET_PDEATHSIG, number, what="prctl parent death signal")


def set_dumpable(dumpable: bool) -> None:
    """Whether others of the same uid may ptrace the caller, read its /proc files, or dump its core.

    A change of uid or gid makes it false, and with it the caller's own files in /proc root's.
    """
    prctl(_SET_DUMPABLE, int(dumpable), what="prctl dumpable")


def is_dumpable() -> bool:
    """See `set_dumpable`."""
    return prctl(_GET_DUMPABLE, what="prctl dumpable") == 1


def set_no_new_privileges() -> None:
    """No exec of the caller or its children grants anything from now on: no set-user-id, no file capabilities."""
    prctl(_SET_NO_NEW_PRIVS, 1, what="prctl no_new_privs")


def no_new_privileges() -> bool:
    """Whether `set_no_new_privileges` holds."""
    return prctl(_GET_NO_NEW_PRIVS, what="prctl no_new_privs") == 1


def set_subreaper(subreaper: bool = True) -> None:
    """Whether orphaned descendants become children of the caller."""
    prctl(_SET_CHILD_SUBREAPER, int(subreaper), what="prctl child subreaper")


def set_secure_bits(bits: int) -> None:
    """Replaces the SECBIT_* of the caller (capabilities(7)); needs CAP_SETPCAP."""
    prctl(_SET_SECUREBITS, bits, what="prctl securebits")


def secure_bits() -> int:
    """The SECBIT_* of the caller."""
    return prctl(_GET_SECUREBITS, what="prctl securebits")


def set_name(name: bytes) -> None:
    """The name of the calling thread in ps, at most 15 bytes."""
    prctl(_SET_NAME, name[:15] + b"\0", what="prctl name")
