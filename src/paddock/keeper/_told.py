"""What lies over files of /proc that programs read and that tell of the machine and of other sandboxes.

The same for all sandboxes; what depends on a sandbox's limits is `_sizes.py`'s.
"""

from __future__ import annotations

import os

from paddock.linux import _files, mounts, sizes

INSTEAD = {
    b"cgroups": b"cgroups",
    b"loadavg": b"loadavg",
    b"pressure": b"nothing",
    b"sys/kernel/random/boot_id": b"boot_id",
    b"vmstat": b"vmstat",
}
"""Files of /proc, and what is over each."""
_COUNTERS = ("pgpgin", "pgpgout", "pswpin", "pswpout", "pgfault", "pgmajfault")
_FLAGS = mounts.RDONLY | mounts.NOSUID | mounts.NODEV | mounts.NOEXEC


def build(place: bytes) -> None:
    """Mount them at `place` in this mount namespace."""
    fd = mounts.fs_mount("tmpfs", (("mode", "0755"), ("size", "64k")))
    strict = os.umask(0)
    try:
        os.mkdir("nothing", 0o555, dir_fd=fd)
        for name, text in _contents().items():
            file = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444, dir_fd=fd)
            os.write(file, text)
            os.close(file)
        mounts.set_attributes(fd, set=_FLAGS)
        mounts.move_mount(fd, mounts.AT_FDCWD, place)
    finally:
        os.umask(strict)
        os.close(fd)


def _contents() -> dict[str, bytes]:
    """Say of the machine what holds for a sandbox alone: no load, no swapping, one group, a boot of its own."""
    groups = b""
    if os.path.exists("/proc/cgroups"):  # a JVM takes from it which version there is
        head, *rows = _files.read("/proc/cgroups").splitlines()
        groups = (
            head + b"".join(b"\n%b\t%b\t1\t%b" % (row[0], row[1], row[3]) for row in map(bytes.split, rows)) + b"\n"
        )
    return {
        "boot_id": _files.read("/proc/sys/kernel/random/uuid"),
        "cgroups": groups,
        "loadavg": sizes.LOADAVG.encode(),
        "vmstat": b"".join(b"%b 0\n" % name.encode() for name in _COUNTERS),
    }
