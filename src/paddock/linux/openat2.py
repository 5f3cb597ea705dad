"""Opening a path that somebody else wrote without being led out of its tree (openat2(2), Linux 5.6)."""

from __future__ import annotations

import errno
import os
import struct

from paddock.linux._syscall import NR, call

_HOW = struct.Struct("=QQQ")  # struct open_how: flags, mode, resolve
_NO_XDEV = 0x01
_NO_MAGICLINKS = 0x02
_NO_SYMLINKS = 0x04
_BENEATH = 0x08
_IN_ROOT = 0x10
# A rename or mount anywhere on the machine while ".." is resolved gives EAGAIN: an attacker can cause it at will.
_ATTEMPTS = 64


def open_in_root(
    dir_fd: int, path: bytes, flags: int, mode: int = 0, *, symlinks: bool = True, cross_mounts: bool = True
) -> int:
    """Opens `path` as if `dir_fd` were the root directory: "/", ".." and links stay inside. Always O_CLOEXEC.

    Magic links (/proc/*/fd/N) are refused, and with `symlinks=False` all symbolic links (ELOOP). A fifo blocks
    unless O_NONBLOCK is among the flags.
    """
    return _open(dir_fd, path, flags, mode, _IN_ROOT, symlinks, cross_mounts)


def open_beneath(
    dir_fd: int, path: bytes, flags: int, mode: int = 0, *, symlinks: bool = True, cross_mounts: bool = True
) -> int:
    """As `open_in_root`, but a path that would leave `dir_fd` (an absolute one, too) is refused: EXDEV."""
    return _open(dir_fd, path, flags, mode, _BENEATH, symlinks, cross_mounts)


def _open(dir_fd: int, path: bytes, flags: int, mode: int, scope: int, symlinks: bool, cross_mounts: bool) -> int:
    resolve = scope | _NO_MAGICLINKS | (0 if symlinks else _NO_SYMLINKS) | (0 if cross_mounts else _NO_XDEV)
    how = _HOW.pack(flags | os.O_CLOEXEC, mode, resolve)
    attempt = 1
    while True:
        try:
            return call(NR.OPENAT2, dir_fd, path, how, _HOW.size, what=("openat2", path))
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EINTR) or attempt == _ATTEMPTS:
                raise
        attempt += 1
