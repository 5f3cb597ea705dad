"""Opening of untrusted paths within their tree (openat2(2), Linux 5.6)."""

from __future__ import annotations

import errno
import os
import struct

from paddock.linux.syscall import call

_HOW = struct.Struct("=QQQ")  # struct open_how: flags, mode, resolve
_NO_XDEV = 0x01
_NO_SYMLINKS = 0x04
_BENEATH = 0x08
# A rename or mount anywhere on the machine during the resolution of ".." gives EAGAIN. An attacker can cause it at
# will.
_ATTEMPTS = 64


def open_beneath(dir_fd: int, path: bytes, flags: int, mode: int = 0, *, cross_mounts: bool = True) -> int:
    """Open `path`, which must not leave `dir_fd`.

    An absolute path or a ".." that leads out is EXDEV, and any symbolic link ELOOP. Always O_CLOEXEC. A fifo blocks
    unless O_NONBLOCK is among the flags.
    """
    resolve = _BENEATH | _NO_SYMLINKS | (0 if cross_mounts else _NO_XDEV)
    how = _HOW.pack(flags | os.O_CLOEXEC, mode, resolve)
    attempt = 1
    while True:
        try:
            return call("openat2", dir_fd, path, how, _HOW.size, what=("openat2", path))
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EINTR) or attempt == _ATTEMPTS:
                raise
        attempt += 1
