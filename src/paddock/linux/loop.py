"""Loop devices: a file as a block device (loop(4), include/uapi/linux/loop.h)."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from paddock.linux import kernel_files
from paddock.linux.descriptors import closing
from paddock.linux.syscall import ioctl

_CONTROL = b"/dev/loop-control"
_CTL_GET_FREE = 0x4C82
_CONFIGURE = 0x4C0A  # Linux 5.8: all settings in one step, so no program sees a half-made device
_GET_STATUS64 = 0x4C05
_SET_CAPACITY = 0x4C07
_AUTOCLEAR = 4
_DIRECT_IO = 16
# struct loop_config: fd, block_size, a struct loop_info64 (device, inode, rdevice, offset, sizelimit, number,
# encrypt_type, encrypt_key_size, flags, file_name, crypt_name, encrypt_key, init), reserved
_CONFIG = struct.Struct("=II 5Q 4I 64s 112x 64x")
_STATUS_SIZE = 232
_ATTEMPTS = 64
_DELETED = " (deleted)"


class LoopDevice(NamedTuple):
    """A device and a descriptor of it. It exists while that is open, or while it has a mount."""

    fd: int
    path: bytes


def attach(file_fd: int) -> LoopDevice:
    """Return a free loop device over the file, which the kernel clears at its last close (LO_FLAGS_AUTOCLEAR).

    I/O bypasses the page cache if the file system below supports that with blocks of 4 KiB. Otherwise the kernel leaves
    that flag off (drivers/block/loop.c, lo_can_use_dio). The caller closes `fd` after mounting.
    """
    name = os.readlink(b"/proc/self/fd/%d" % file_fd)[-63:]
    config = _CONFIG.pack(file_fd, 4096, 0, 0, 0, 0, 0, 0, 0, 0, _AUTOCLEAR | _DIRECT_IO, name)
    with closing(os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)) as control:
        attempt = 1
        while True:
            number = ioctl(control, _CTL_GET_FREE, 0, what=("find a free loop device",))
            path = b"/dev/loop%d" % number
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                ioctl(fd, _CONFIGURE, bytearray(config), what=("configure", path))
                return LoopDevice(fd, path)
            except OSError as error:
                os.close(fd)
                # Another program took the number between the two calls.
                if error.errno != errno.EBUSY or attempt == _ATTEMPTS:
                    raise
            attempt += 1


def find(file_fd: int) -> list[bytes]:
    """Return the loop devices over this very file: by device and inode, which no rename or namespace changes."""
    wanted = os.fstat(file_fd)
    found: list[bytes] = []
    for name in os.listdir(b"/sys/block"):
        if not name.startswith(b"loop") or not os.path.isdir(b"/sys/block/" + name + b"/loop"):
            continue
        try:
            device, inode = _backing(b"/dev/" + name)
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ENOENT):
                continue
            raise
        if (device, inode) == (_new_encode(wanted.st_dev), wanted.st_ino):
            found.append(b"/dev/" + name)
    return found


def deleted() -> Iterator[tuple[str, str]]:
    """Devices whose file has no name any more, and the one that it had (drivers/block/loop.c, backing_file)."""
    for device in os.listdir("/sys/block"):
        try:
            path = kernel_files.read(f"/sys/block/{device}/loop/backing_file").decode(errors="replace").rstrip("\n")
        except OSError:
            continue
        if path.endswith(_DELETED):
            yield f"/dev/{device}", path.removesuffix(_DELETED)


def update_size(path: bytes) -> None:
    """Lets the device be as large as its file is now, while it is in use."""
    with closing(os.open(path, os.O_RDWR | os.O_CLOEXEC)) as fd:
        ioctl(fd, _SET_CAPACITY, 0, what=("update the size of", path))


def _backing(path: bytes) -> tuple[int, int]:
    with closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        status = bytearray(_STATUS_SIZE)
        ioctl(fd, _GET_STATUS64, status, what=("status of", path))
        return struct.unpack_from("=QQ", status)


def _new_encode(device: int) -> int:
    """Encode a device number like lo_device (include/linux/kdev_t.h, huge_encode_dev)."""
    major, minor = os.major(device), os.minor(device)
    return (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)
