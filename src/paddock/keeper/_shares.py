"""What the kernel counts by user, where all sandboxes of a user are one user: each gets a share of it.

As root every sandbox has ids of its own and so counts of its own. An ordinary user's sandboxes have the caller's: one
of them could use up what the caller and all the others have. Counts go through every user namespace on the way to the
first, each of which has ceilings of its own (kernel/ucount.c): those of a sandbox's outer one hold for the whole of it.
"""

from __future__ import annotations

import resource
from collections.abc import Generator
from contextlib import contextmanager

from paddock.linux import _files

PARTS = 4
_COUNTS = (  # Documentation/admin-guide/sysctl/user.rst; what the user has in all is another table's
    (b"sys/fs/inotify/max_user_instances", b"sys/user/max_inotify_instances"),
    (b"sys/fs/inotify/max_user_watches", b"sys/user/max_inotify_watches"),
)
_RESOURCES = (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE)


def bound_counts(proc: int) -> None:
    """Lowers the ceilings of the caller's user namespace. `proc` is a mount of /proc that can be written. OSError."""
    for whole, own in _COUNTS:
        try:
            _files.write(own, b"%d" % (int(_files.read(whole, proc)) // PARTS), proc)
        except FileNotFoundError:
            continue  # a kernel without it


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
