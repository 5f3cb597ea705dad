"""Landlock as a second layer, which holds despite a mistake in the mounts (landlock(7)).

The ruleset refuses device nodes, and abstract unix sockets and signals towards the outside. It restricts nothing else:
a sandbox's root is its own. Facts: Documentation/userspace-api/landlock.rst.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterable
from typing import NamedTuple

from paddock.linux.descriptors import closing
from paddock.linux.syscall import call

KNOWN_ABI = 10
"""The newest version of Landlock that this code knows. On a newer kernel it uses only this much."""

_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1
# LANDLOCK_ACCESS_FS_*, include/uapi/linux/landlock.h
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR = 1 << 6
_MAKE_BLOCK = 1 << 11
_REFER = 1 << 13  # ABI 2
_TRUNCATE = 1 << 14  # ABI 3
_ALL_OF_1 = (1 << 13) - 1
_READ = _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_SCOPE_ABSTRACT_UNIX = 1 << 0  # ABI 6
_SCOPE_SIGNAL = 1 << 1  # ABI 6
_RULESET = struct.Struct("=QQQ")  # struct landlock_ruleset_attr: fs, net (ABI 4), scoped (ABI 6)
_PATH_BENEATH = struct.Struct("=Qi")  # struct landlock_path_beneath_attr, packed


def kernel_abi() -> int:
    """Return the Landlock version of this kernel, or 0 if it is absent or disabled."""
    try:
        return call("landlock_create_ruleset", None, 0, _VERSION_FLAG, what="landlock version")
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP):
            return 0
        raise


def level(abi: int) -> str:
    """Describe the effect of the ruleset for a kernel of version `abi`."""
    if abi < 2:
        # Before version 2, any ruleset for files refuses every rename into another directory.
        return "landlock: off" if abi == 0 else "landlock: off (its version 1 would refuse renames between directories)"
    if abi < 6:
        return f"landlock {abi}: no device nodes"
    return f"landlock {min(abi, KNOWN_ABI)}: no device nodes, no abstract sockets or signals to the outside"


class Ruleset(NamedTuple):
    """`attributes` for landlock_create_ruleset(2), and the rights of its one rule, about "/".

    The caller adds that rule when the root is final. Without it every rename or link into another directory would fail
    with EXDEV.
    """

    attributes: bytes
    below_root: int


def ruleset(abi: int) -> Ruleset | None:
    """Return the ruleset of a sandbox, for a kernel of version `abi`, or None if that is useless."""
    if abi < 2:
        return None
    scoped = _SCOPE_ABSTRACT_UNIX | _SCOPE_SIGNAL if abi >= 6 else 0
    attributes = _RULESET.pack(_MAKE_CHAR | _MAKE_BLOCK | _REFER, 0, scoped)
    return Ruleset(attributes[: _RULESET.size if abi >= 6 else 16 if abi >= 4 else 8], _REFER)


def restrict_files(abi: int, *, readable: Iterable[str], writable: Iterable[str | int]) -> bool:
    """Restrict the caller and its children to these files and their open ones, and return False if this kernel can't.

    Needs no_new_privs.

    It ignores missing paths of `readable` and `writable`. A number is a descriptor.
    """
    if abi < 1:
        return False
    handled = _ALL_OF_1 | (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0)
    scoped = _SCOPE_SIGNAL if abi >= 6 else 0
    size = _RULESET.size if abi >= 6 else 8
    with closing(
        call("landlock_create_ruleset", _RULESET.pack(handled, 0, scoped), size, 0, what="landlock files")
    ) as ruleset:
        for paths, access in ((readable, _READ), (writable, handled & ~_EXECUTE)):
            for path in paths:
                _allow(ruleset, path, access)
        restrict_self(ruleset)
    return True


def _allow(ruleset: int, path: str | int, access: int) -> None:
    try:
        place = os.dup(path) if isinstance(path, int) else os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    with closing(place):
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            access &= _OF_FILES
        rule = _PATH_BENEATH.pack(access, place)
        call("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, rule, 0, what=("landlock_add_rule", path))


def restrict_self(ruleset: int) -> None:
    """Put the calling thread and all that it starts under the ruleset. Needs no_new_privs or CAP_SYS_ADMIN."""
    call("landlock_restrict_self", ruleset, 0)
