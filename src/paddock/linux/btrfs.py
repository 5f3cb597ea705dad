"""Btrfs: subvolumes, quotas and inode counts by ioctl (include/uapi/linux/btrfs.h, btrfs_tree.h).

The owner can create and destroy subvolumes. Quotas, limits and tree searches need CAP_SYS_ADMIN.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from typing import Literal, NamedTuple

from paddock.linux import kernel_files
from paddock.linux.syscall import call, ioctl

_MAGIC = 0x9123683E  # BTRFS_SUPER_MAGIC, include/uapi/linux/magic.h

_SUBVOL_CREATE_V2 = 0x5000_9418
_SNAP_CREATE_V2 = 0x5000_9417
_SNAP_DESTROY = 0x5000_940F
_SUBVOL_GETFLAGS = 0x8008_9419
_SUBVOL_SETFLAGS = 0x4008_941A
_INO_LOOKUP = 0xD000_9412
_QUOTA_CTL = 0xC010_9428
_QGROUP_CREATE = 0x4010_942A
_QGROUP_LIMIT = 0x8030_942B
_TREE_SEARCH_V2 = 0xC070_9411
_FS_INFO = 0x8400_941F
_SYNC = 0x9408
_RESIZE = 0x5000_9403
_BALANCE = 0xC400_9420
_SCRUB = 0xC400_941B
_DEV_STATS = 0xC408_9434
_GET_SUBVOL_ROOTREF = 0xD000_943D
_TRIM = 0xC018_5879  # FITRIM, include/uapi/linux/fs.h

_VOL_ARGS_V2 = struct.Struct("=qQQ32x4040s")  # fd, transid, flags, unused, name
_VOL_ARGS = struct.Struct("=q4088s")
_LOOKUP = struct.Struct("=QQ4080x")  # treeid, objectid, name
_ROOT_REFS = struct.Struct("=Q4080xB7x")  # min_treeid, 255 pairs, num_items
_PAIR = struct.Struct("=QQ")
_LIMIT = struct.Struct("=6Q")  # qgroupid, flags, max_rfer, max_excl, rsv_rfer, rsv_excl
# struct btrfs_ioctl_search_args_v2: tree, object ids, offsets, transids (each min and max), types, nr_items, buf_size
_SEARCH = struct.Struct("=7Q3I36xQ")
_FOUND = struct.Struct("=QQQII")  # struct btrfs_ioctl_search_header: transid, objectid, offset, type, len

_SUBVOL_RDONLY = 2
_FIRST_FREE_OBJECTID = 256
_LAST_FREE_OBJECTID = 2**64 - 256
_NOTHING = 2**64 - 1
_INODE_ITEM = 1
_QUOTA_ENABLE = 1
_QUOTA_ENABLE_SIMPLE = 4
_LIMIT_MAX_RFER = 1
_METADATA_AND_SYSTEM = 1 << 2 | 1 << 1


def is_btrfs(fd: int) -> bool:
    """Tell whether `fd` lies on btrfs, by the first word of struct statfs (statfs(2))."""
    buffer = ctypes.create_string_buffer(256)
    call("fstatfs", fd, buffer)
    return int.from_bytes(buffer.raw[:4], "little") == _MAGIC


def create_subvolume(dir_fd: int, name: bytes) -> None:
    """Make an empty subvolume `name` in the directory `dir_fd`, owned by the caller."""
    ioctl(dir_fd, _SUBVOL_CREATE_V2, bytearray(_VOL_ARGS_V2.pack(0, 0, 0, name)), what=("btrfs subvolume create", name))


def snapshot(source_fd: int, dir_fd: int, name: bytes) -> None:
    """Make a subvolume `name` in `dir_fd` with the content of the subvolume `source_fd` at this instant."""
    arguments = bytearray(_VOL_ARGS_V2.pack(source_fd, 0, 0, name))
    ioctl(dir_fd, _SNAP_CREATE_V2, arguments, what=("btrfs snapshot", name))


def destroy_subvolume(dir_fd: int, name: bytes) -> None:
    """Remove a subvolume with all its files.

    The kernel's cleaner frees the space later.

    A subvolume that contains another one gives ENOTEMPTY.
    """
    ioctl(dir_fd, _SNAP_DESTROY, bytearray(_VOL_ARGS.pack(0, name)), what=("btrfs subvolume destroy", name))


def set_read_only(fd: int, read_only: bool) -> None:
    """Set or clear the flag that refuses every write to the subvolume `fd`."""
    flags = _SUBVOL_RDONLY if read_only else 0
    ioctl(fd, _SUBVOL_SETFLAGS, bytearray(flags.to_bytes(8, "little")), what=("btrfs set read-only", read_only))


def is_read_only(fd: int) -> bool:
    """Tell whether the subvolume `fd` refuses writes."""
    buffer = bytearray(8)
    ioctl(fd, _SUBVOL_GETFLAGS, buffer, what=("btrfs subvolume flags",))
    return bool(int.from_bytes(buffer, "little") & _SUBVOL_RDONLY)


def is_subvolume(fd: int) -> bool:
    """Tell whether `fd` is the root of a subvolume: always inode 256, which no other directory has."""
    return os.fstat(fd).st_ino == _FIRST_FREE_OBJECTID and is_btrfs(fd)


def subvolume_id(fd: int) -> int:
    """Return the id of the subvolume that `fd` lies in: also the number of its quota group, 0/<id>."""
    buffer = bytearray(_LOOKUP.pack(0, _FIRST_FREE_OBJECTID))
    ioctl(fd, _INO_LOOKUP, buffer, what=("btrfs subvolume id",))
    return int.from_bytes(buffer[:8], "little")


def has_subvolumes(fd: int) -> bool:
    """Tell whether the subvolume of `fd` contains others, which a snapshot of it leaves out (Linux 4.18)."""
    buffer = bytearray(_ROOT_REFS.size)
    try:
        ioctl(fd, _GET_SUBVOL_ROOTREF, buffer, what=("btrfs subvolumes below",))
    except OSError as error:
        if error.errno != errno.EOVERFLOW:  # more than one answer holds
            raise
        return True
    return _ROOT_REFS.unpack(buffer)[1] > 0


def filesystem_id(fd: int) -> str:
    """Return the UUID by which sysfs knows the file system of `fd`."""
    buffer = bytearray(1024)
    ioctl(fd, _FS_INFO, buffer, what=("btrfs file system info",))
    digits = buffer[16:32].hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def sync(fd: int) -> None:
    """Commit the running transaction."""
    ioctl(fd, _SYNC, 0, what=("btrfs sync",))


# ---- health and size

_STATS = ("write errors", "read errors", "flush errors", "corruption errors", "generation errors")
_DEVICE = 1  # the only one that an image of ours ever has
# struct btrfs_ioctl_scrub_args: devid, start, end, flags, then struct btrfs_scrub_progress
_SCRUB_ARGS = struct.Struct("=4Q")
_SCRUB_READ_ONLY = 1
_PROGRESS = struct.Struct("=15Q")
_SCRUB_FAULTS = {4: "read errors", 5: "checksum errors", 6: "metadata errors", 9: "super block errors"}


def device_errors(fd: int) -> dict[str, int]:
    """Return the counts of the device's errors since its creation, without zeros. The file system stores them."""
    # struct btrfs_ioctl_get_dev_stats: devid, nr_items, flags, values
    arguments = bytearray(1032)
    struct.pack_into("=3Q", arguments, 0, _DEVICE, len(_STATS), 0)
    ioctl(fd, _DEV_STATS, arguments, what=("btrfs device statistics",))
    counts = struct.unpack_from(f"={len(_STATS)}Q", arguments, 24)
    return {words: count for words, count in zip(_STATS, counts, strict=True) if count}


def scrub(fd: int) -> dict[str, int]:
    """Read all used blocks, and compare them with their checksums, without an interruption of other work.

    It changes nothing.

    Return the errors by kind. It may take minutes (fs/btrfs/scrub.c). Raises OSError EINPROGRESS if another scrub runs.
    """
    arguments = bytearray(1024)
    _SCRUB_ARGS.pack_into(arguments, 0, _DEVICE, 0, _NOTHING, _SCRUB_READ_ONLY)
    ioctl(fd, _SCRUB, arguments, what=("btrfs scrub",))
    progress = _PROGRESS.unpack_from(arguments, _SCRUB_ARGS.size)
    return {words: progress[index] for index, words in _SCRUB_FAULTS.items() if progress[index]}


def resize_to_device(fd: int) -> None:
    """Lets the file system use all of its device, which has grown."""
    arguments = bytearray(_VOL_ARGS.pack(0, b"%d:max" % _DEVICE))
    ioctl(fd, _RESIZE, arguments, what=("btrfs resize",))


def balance_metadata(fd: int) -> None:
    """Write the metadata anew, in chunks of the size that the kernel chooses for this device."""
    # struct btrfs_ioctl_balance_args: flags and state, the filters of each kind, progress
    ioctl(fd, _BALANCE, bytearray(struct.pack("=Q1016x", _METADATA_AND_SYSTEM)), what=("btrfs balance",))


def trim(fd: int) -> int:
    """Report free space to the device: in an image it becomes holes. Return the number of bytes."""
    arguments = bytearray(struct.pack("=3Q", 0, _NOTHING, 0))
    ioctl(fd, _TRIM, arguments, what=("trim",))
    return struct.unpack_from("=Q", arguments, 8)[0]


# ---- quotas

QuotaMode = Literal["simple", "full", "off"]


class Quota(NamedTuple):
    """The values of a subvolume's quota group: used bytes, and the limit (None: no limit)."""

    used_bytes: int
    limit_bytes: int | None


def enable_quota(fd: int) -> QuotaMode:
    """Turn quotas on if they are off: simple ones (Linux 6.7: no backreference walks), else full ones.

    Returns the mode that holds then. Only extents written afterwards count under simple quotas.
    """
    mode = quota_mode(fd)
    if mode != "off":
        return mode
    try:
        ioctl(fd, _QUOTA_CTL, bytearray(_PAIR.pack(_QUOTA_ENABLE_SIMPLE, 0)), what=("btrfs simple quota enable",))
        return "simple"
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
    ioctl(fd, _QUOTA_CTL, bytearray(_PAIR.pack(_QUOTA_ENABLE, 0)), what=("btrfs quota enable",))
    return "full"


def quota_mode(fd: int) -> QuotaMode:
    """Which kind of quota is on, by sysfs (fs/btrfs/sysfs.c: qgroups/mode since 6.7, qgroups/enabled since 5.9)."""
    directory = f"/sys/fs/btrfs/{filesystem_id(fd)}/qgroups/"
    try:
        mode = kernel_files.read(directory + "mode")
    except FileNotFoundError:
        return "full" if os.path.isdir(directory) else "off"
    return "simple" if mode.startswith(b"squota") else "full"


def set_byte_limit(fd: int, subvolume: int, limit_bytes: int | None) -> None:
    """Set the limit of subvolume id `subvolume` (EDQUOT beyond), or remove it for None. `fd`: any file on the pool."""
    arguments = _LIMIT.pack(subvolume, _LIMIT_MAX_RFER, _NOTHING if limit_bytes is None else limit_bytes, 0, 0, 0)
    ioctl(fd, _QGROUP_LIMIT, bytearray(arguments), what=("btrfs limit of subvolume", subvolume))


def open_quotas(fd: int) -> int:
    """Return a descriptor of the quota groups in sysfs, which outlives the mount of sysfs."""
    return os.open(f"/sys/fs/btrfs/{filesystem_id(fd)}/qgroups", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def quota(quotas: int, subvolume: int) -> Quota:
    """Return use and limit of subvolume id `subvolume`, the kernel's current numbers, from `open_quotas`.

    Raises FileNotFoundError if it has no quota group.
    """
    used, limit, flags = (
        int(kernel_files.read(f"0_{subvolume}/{name}", quotas), 0)
        for name in ("referenced", "max_referenced", "limit_flags")
    )
    return Quota(used, limit if flags & _LIMIT_MAX_RFER and limit != _NOTHING else None)


def remove_quota_group(fd: int, subvolume: int) -> bool:
    """Remove the quota group of a destroyed subvolume.

    Return False if the cleaner still uses it (EBUSY).

    Return True also if it has disappeared by itself, as under simple quotas.
    """
    try:
        ioctl(fd, _QGROUP_CREATE, bytearray(_PAIR.pack(0, subvolume)), what=("btrfs quota group remove", subvolume))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTCONN):
            return True
        if error.errno == errno.EBUSY:
            return False
        raise
    return True


# ---- inodes


def highest_inode(fd: int) -> int:
    """Return the largest inode number in use in the subvolume of `fd`: 256 if it is empty.

    While mounted, the kernel assigns numbers upwards and never again. So `highest_inode(fd) - 256` is at least the
    number of files. It costs some 20 searches for any number of files.
    """
    low, step = _FIRST_FREE_OBJECTID, 1
    while (found := _next_inode(fd, low + step)) is not None:
        low, step = found, step * 2
    high = low + step  # nothing lives from here on
    while low + 1 < high:
        middle = (low + high) // 2
        found = _next_inode(fd, middle)
        if found is None:
            high = middle
        else:
            low = found
    return low


def count_inodes(fd: int, last: int) -> Iterator[int]:
    """Count files, directories and links of the subvolume of `fd`, its root included, up to the inode number `last`:
    running totals, the last is all.

    About a millisecond passes between two totals, so that a single-threaded caller can do other things or stop.
    """
    count, start = 0, _FIRST_FREE_OBJECTID
    buffer = bytearray(_SEARCH.size + 131072)  # more than the largest item, else EOVERFLOW
    while found := _search_inodes(fd, buffer, start, last, 4096):
        offset = _SEARCH.size
        for _ in range(found):
            # The search compares whole keys: items of other types come along.
            _, start, _, kind, length = _FOUND.unpack_from(buffer, offset)
            count += kind == _INODE_ITEM
            offset += _FOUND.size + length
        start += 1
        yield count


def _next_inode(fd: int, start: int) -> int | None:
    """Return the first inode number from `start` on that has an item."""
    if start >= _LAST_FREE_OBJECTID:
        return None
    buffer = bytearray(_SEARCH.size + 4096)
    return (
        _FOUND.unpack_from(buffer, _SEARCH.size)[1]
        if _search_inodes(fd, buffer, start, _LAST_FREE_OBJECTID, 1)
        else None
    )


def _search_inodes(fd: int, buffer: bytearray, start: int, last: int, items: int) -> int:
    """Fill `buffer` (fs/btrfs/ioctl.c, search_ioctl) from the tree of `fd`, and return how many items it holds."""
    arguments = (0, start, last, 0, _NOTHING, 0, _NOTHING, _INODE_ITEM, _INODE_ITEM, items)
    _SEARCH.pack_into(buffer, 0, *arguments, len(buffer) - _SEARCH.size)
    ioctl(fd, _TREE_SEARCH_V2, buffer, what=("btrfs tree search",))
    return int.from_bytes(buffer[64:68], "little")
