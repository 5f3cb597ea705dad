"""Making files as another user while keeping one's own identity (setfsuid(2))."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager

from paddock.linux._syscall import call, failure

_ASK = 0xFFFF_FFFF  # no id: changes nothing, and returns the present one


@contextmanager
def acting_as(uid: int, gid: int) -> Generator[None, None, None]:
    """Within the block, files are made and judged as those of `uid` and `gid`, by this thread.

    An overlay over id-mapped layers has to be made as an id that they map, or its first write is EOVERFLOW. The
    kernel takes the capabilities over files away together with uid 0, unless SECBIT_NO_SETUID_FIXUP is set
    (capabilities(7)). PermissionError if the change was refused, which the system call itself does not tell.
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
