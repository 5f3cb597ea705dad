"""Mounts, built detached and placed by descriptor (fsopen(2), open_tree(2), mount_setattr(2), move_mount(2))."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Sequence

from paddock.linux.descriptors import closing
from paddock.linux.syscall import call, failure

# MOUNT_ATTR_*, include/uapi/linux/mount.h
RDONLY = 0x1
NOSUID = 0x2
NODEV = 0x4
NOEXEC = 0x8
NOATIME = 0x10
IDMAP = 0x0010_0000

AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_AT_SYMLINK_NOFOLLOW = 0x100
_CLOEXEC = 1  # FSOPEN_CLOEXEC, FSMOUNT_CLOEXEC
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 0x04
_MOVE_MOUNT_T_EMPTY_PATH = 0x40
_SET_FLAG, _SET_STRING, _SET_FD, _CREATE = 0, 1, 5, 6  # enum fsconfig_command
_MS_REC = 0x4000
_MS_PRIVATE = 0x4_0000
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_ATTR = struct.Struct("=QQQQ")  # struct mount_attr: set, clear, propagation, userns_fd

Option = tuple[str, str | bytes | int | None]
"""Name and value: text, a descriptor (int), or None for a flag."""


def fs_mount(fstype: str, options: Sequence[Option] = (), attributes: int = 0) -> int:
    """Make a file system and return the descriptor of a detached mount of it (fsopen(2), fsconfig(2), fsmount(2)).

    Descriptors are options as such, or as `/proc/self/fd/N` if the kernel refuses one (before Linux 6.13, see
    fs/overlayfs/params.c). The error's text ends with the kernel's log of the context.
    """
    name = fstype.encode()
    with closing(call("fsopen", name, _CLOEXEC, what=("fsopen", name))) as context:
        for option, value in options:
            _configure(context, fstype, option, value)
        _fsconfig(context, _CREATE, None, None, 0, ("fsconfig", fstype, "create"))
        return call("fsmount", context, _CLOEXEC, attributes, what=("fsmount", fstype))


def _configure(context: int, fstype: str, option: str, value: str | bytes | int | None) -> None:
    name = option.encode()
    what = ("fsopen", fstype, option, "" if value is None else value)
    if value is None:
        _fsconfig(context, _SET_FLAG, name, None, 0, what)
    elif isinstance(value, int):
        try:
            _fsconfig(context, _SET_FD, name, None, value, what)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP):
                raise
            _fsconfig(context, _SET_STRING, name, b"/proc/self/fd/%d" % value, 0, what)
    else:
        _fsconfig(context, _SET_STRING, name, value.encode() if isinstance(value, str) else value, 0, what)


def _fsconfig(
    context: int, command: int, key: bytes | None, value: bytes | None, aux: int, what: tuple[object, ...]
) -> None:
    try:
        call("fsconfig", context, command, key, value, aux)
    except OSError as error:
        raise failure(error.errno or 0, what, _context_log(context)) from None


def _context_log(context: int) -> str:
    """Return the kernel's messages: one per read(2), ENODATA at the end (Documentation/filesystems/mount_api.rst)."""
    lines: list[str] = []
    try:
        while len(lines) < 16:
            lines.append(os.read(context, 1024).decode(errors="replace").strip())
    except OSError:
        pass
    return "; ".join(lines)


def open_tree(path: bytes, dir_fd: int = AT_FDCWD, *, recursive: bool = False) -> int:
    """Return a detached copy of the mount at `path` (open_tree(2)).

    An empty `path` is `dir_fd` itself. A symbolic link as last component is not followed. A `dir_fd` opened before
    unshare(NEWNS) gives EINVAL: the mount that it knows is not of this namespace.
    """
    flags = os.O_CLOEXEC | _AT_SYMLINK_NOFOLLOW | _OPEN_TREE_CLONE | (_AT_RECURSIVE if recursive else 0)
    if not path:
        flags |= _AT_EMPTY_PATH
    return call("open_tree", dir_fd, path, flags, what=("open_tree", path or dir_fd))


def move_mount(fd: int, dir_fd: int, path: bytes = b"") -> None:
    """Attaches the detached mount `fd` (or moves an attached one) onto `path` below `dir_fd` (move_mount(2)).

    An empty `path` is `dir_fd` itself. A symbolic link as last component is not followed. `fd` stays open and is
    then the attached mount.
    """
    flags = _MOVE_MOUNT_F_EMPTY_PATH | (0 if path else _MOVE_MOUNT_T_EMPTY_PATH)
    call("move_mount", fd, b"", dir_fd, path, flags, what=("move_mount to", path or dir_fd))


def set_attributes(fd: int, *, set: int = 0, userns_fd: int | None = None, recursive: bool = False) -> None:
    """Add flags to the mount `fd` (mount_setattr(2)).

    With `userns_fd`, map its ids by that namespace.

    Only a detached mount without an id map can get one.
    """
    if userns_fd is not None:
        set |= IDMAP
    attributes = _ATTR.pack(set, 0, 0, userns_fd or 0)
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    call("mount_setattr", fd, b"", flags, attributes, _ATTR.size, what=("mount_setattr", hex(set)))


def bind(source: bytes, dir_fd: int, path: bytes = b"", *, attributes: int = 0) -> None:
    """Show `source` at `path` below `dir_fd`, with `attributes` from the first moment on."""
    with closing(open_tree(source)) as fd:
        if attributes:
            set_attributes(fd, set=attributes)
        move_mount(fd, dir_fd, path)


def umount(path: bytes, *, detach: bool = False) -> None:
    """Unmount a path (umount2(2)), never through a symbolic link.

    `detach`: lazily, with all mounts below.

    Without it, EBUSY while any process has a descriptor of the mount or of a file in it.
    """
    call("umount2", path, _UMOUNT_NOFOLLOW | (_MNT_DETACH if detach else 0), what=("umount", path))


def make_all_private() -> None:
    """End propagation of mounts to and from this namespace (mount_namespaces(7))."""
    call("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None, what="make all mounts private")


def pivot() -> None:
    """Make the working directory, which must be a mount, the root of all whose root was the old one.

    By the `pivot_root(".", ".")` of pivot_root(2), which needs no directory for the old root. That one is still there,
    over the new one and above it, and goes by `detach_old_root`.
    """
    call("pivot_root", b".", b".")


def detach_old_root() -> None:
    """Follows `pivot`, in the same working directory. Waits until no processor can be on its way in the old tree."""
    call("umount2", b".", _MNT_DETACH, what="umount the old root")
    os.chdir(b"/")
