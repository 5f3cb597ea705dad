"""Enter another namespace, such as that of a new sandbox, and return."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from paddock.linux import namespaces


class NamespaceSet(NamedTuple):
    """Hold descriptors of namespaces that the supervisor enters: mounts and host name of a spare, mounts and network of
    a living sandbox."""

    mounts: int
    names: int = -1
    network: int = -1

    @classmethod
    def of(cls, pid: int, *, network: bool = False) -> NamespaceSet:
        """Open the namespaces of a process. For a living sandbox this works only as root: the kernel hides the
        namespaces of a non-dumpable process from ordinary users. Raises OSError."""
        mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            other = os.open(f"/proc/{pid}/ns/{'net' if network else 'uts'}", os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            os.close(mounts)
            raise
        return cls(mounts, network=other) if network else cls(mounts, other)

    def close(self) -> None:
        for fd in self:
            if fd >= 0:
                os.close(fd)


@contextmanager
def visit(kind: int, there: int, home: int) -> Generator[None]:
    """Stay in the namespace `there` of this kind (`namespaces.NEWNS`) until the end of the block."""
    try:
        namespaces.setns(there, kind)
        yield
    finally:
        try:
            namespaces.setns(home, kind)
        except BaseException as error:
            # Not by `traceback`: to import that is a fifth of what a namespace entry costs.
            sys.excepthook(type(error), error, error.__traceback__)
            os._exit(1)  # a supervisor that is lost in a sandbox is worse than none: the next one takes over
