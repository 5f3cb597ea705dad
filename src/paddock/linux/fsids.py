"""Making files as another user while keeping one's own identity (setfsuid(2))."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager

from paddock.linux.syscall import call, failure

_ASK = 0xFFFF_FFFF  # no id: changes nothing, and returns the present one


@contextmanager
def acting_as(uid: int, gid: int) -> Generator[None, None, None]:
    """Make and check files as `uid` and `gid` within the block, in this thread.

    An overlay over id-mapped layers needs a creator with an id that they map, or its first write is EOVERFLOW. With uid
    0 the kernel also removes the capabilities over files, unless SECBIT_NO_SETUID_FIXUP applies (capabilities(7)).
    Raises PermissionError for a refused change, which the system call itself doesn't report.
    """
    before = _change(uid, gid)
    try:
        yield
    finally:
        _change(*before)


def _change(uid: int, gid: int) -> tuple[int, int]:
    """Return those before."""
    group, user = call("setfsgid", gid, what=("setfsgid", gid)), call("setfsuid", uid, what=("setfsuid", uid))
    if (call("setfsuid", _ASK), call("setfsgid", _ASK)) != (uid, gid):
        call("setfsgid", group)
        call("setfsuid", user)
        raise failure(errno.EPERM, ("setfsuid", uid, "setfsgid", gid))
    return user, group
