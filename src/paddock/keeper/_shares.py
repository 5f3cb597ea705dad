"""What the kernel counts by user, where all sandboxes of a user are one user: each gets a share of it.

As root every sandbox has ids of its own and so counts of its own. An ordinary user's sandboxes have the caller's: one
of them could use up what the caller and all the others have. Counts go through every user namespace on the way to the
first, each of which has ceilings of its own (kernel/ucount.c): those of a sandbox's outer one hold for the whole of it.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Generator
from contextlib import contextmanager, suppress

from paddock.linux import _files

PARTS = 4
_COUNTS = (  # Documentation/admin-guide/sysctl/user.rst; what the user has in all is another table's
    (b"sys/fs/inotify/max_user_instances", b"sys/user/max_inotify_instances"),
    (b"sys/fs/inotify/max_user_watches", b"sys/user/max_inotify_watches"),
)
# Documentation/admin-guide/sysctl/kernel.rst. What System V IPC holds is in the size of no process. PostgreSQL and X11
# want little of it.
_IPC = {
    b"shmmax": b"%d" % (64 << 20),
    b"shmall": b"%d" % ((64 << 20) // os.sysconf("SC_PAGE_SIZE")),
    b"msgmni": b"256",  # of 16 KiB each
    b"sem": b"32000 32000 500 128",
}
_RESOURCES = (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE)


def bound_counts(proc: int) -> None:
    """Lowers the ceilings of the caller's user namespace. `proc` is a mount of /proc that can be written. OSError."""
    for whole, own in _COUNTS:
        try:
            _files.write(own, b"%d" % (int(_files.read(whole, proc)) // PARTS), proc)
        except FileNotFoundError:
            continue  # a kernel without it


def bound_ipc(proc: int) -> None:
    """Lowers the ceilings of the caller's ipc namespace, where no control group counts for it. OSError.

    Not where the kernel lets only the machine's root set them (before 6.0): see `has_bounded_ipc`.
    """
    for name, value in _IPC.items():
        with suppress(PermissionError):
            _files.write(b"sys/kernel/" + name, value, proc)


def has_bounded_ipc() -> bool:
    """Whether `bound_ipc` was heard, by the /proc that everybody inside sees."""
    return all(_files.read(b"/proc/sys/kernel/" + name).split() == value.split() for name, value in _IPC.items())


@contextmanager
def bounding_resources() -> Generator[None]:
    """A user namespace that is made meanwhile holds its processes together to a share of queued signals and messages:
    the ceiling that counts above it is its maker's soft limit at that moment (create_user_ns).
    """
    before = [resource.getrlimit(number) for number in _RESOURCES]
    try:
        for number, (soft, hard) in zip(_RESOURCES, before, strict=True):
            if soft != resource.RLIM_INFINITY:
                resource.setrlimit(number, (soft // PARTS, hard))
        yield
    finally:
        for number, limits in zip(_RESOURCES, before, strict=True):
            resource.setrlimit(number, limits)
