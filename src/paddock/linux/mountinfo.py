"""The mounts of a process, as proc_pid_mountinfo(5) lists them."""

from __future__ import annotations

import re
from typing import NamedTuple

from paddock.linux import kernel_files

_OCTAL = re.compile(rb"\\([0-7]{3})")


class MountInfo(NamedTuple):
    """One mount. `options` are the mount's own, `super_options` its file system's."""

    root: bytes
    mount_point: bytes
    options: frozenset[str]
    fstype: str
    source: bytes
    super_options: frozenset[str]


def parse(line: bytes) -> MountInfo:
    """One line of mountinfo. Raises ValueError."""
    fields = line.split(b" ")
    dash = fields.index(b"-", 6)
    root, point, options = fields[3:6]
    fstype, source, super_options = fields[dash + 1 : dash + 4]
    return MountInfo(
        root=_plain(root),
        mount_point=_plain(point),
        options=frozenset(options.decode().split(",")),
        fstype=fstype.decode(),
        source=_plain(source),
        super_options=frozenset(super_options.decode(errors="surrogateescape").split(",")),
    )


def read(pid: int | str = "self", fstype: str = "") -> list[MountInfo]:
    """Return the mounts of the mount namespace of `pid` that its root directory shows.

    `fstype` selects types of file systems by prefix.
    """
    kind = f" - {fstype}".encode()
    return [parse(line) for line in kernel_files.read(f"/proc/{pid}/mountinfo").splitlines() if kind in line]


def _plain(field: bytes) -> bytes:
    """Decode blank, tab, newline and backslash from three octal digits (fs/proc_namespace.c, mangle)."""
    if b"\\" not in field:
        return field
    return _OCTAL.sub(lambda match: bytes((int(match[1], 8),)), field)
