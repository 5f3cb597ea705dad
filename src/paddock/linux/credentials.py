"""Ids by which file systems judge the caller."""

from __future__ import annotations

from paddock.linux._syscall import NR, call


def set_fs_ids(uid: int, gid: int) -> None:
    """The ids that new files get and permissions are checked for (setfsuid(2), setfsgid(2)).

    The calls report no failure: PermissionError where the ids are not what was asked for.
    Unless SECBIT_NO_SETUID_FIXUP is set, leaving uid 0 drops the capabilities that concern files (capabilities(7)).
    """
    for number, value in ((NR.SETFSGID, gid), (NR.SETFSUID, uid)):
        call(number, value, what="set fs id")
        if call(number, -1, what="get fs id") != value:
            raise PermissionError(f"the kernel refuses {value} as id for files")
