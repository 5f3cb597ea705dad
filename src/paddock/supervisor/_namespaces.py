"""Enter another namespace, such as that of a new sandbox, and return."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from paddock.linux import namespaces


class OpenNamespaces(NamedTuple):
    """Hold descriptors of the namespaces of a living sandbox that the supervisor enters."""

    mounts: int
    network: int

    @classmethod
    def of(cls, pid: int) -> OpenNamespaces:
        """Open those of a process, as root: the kernel hides the namespaces of a non-dumpable process from ordinary
        users. Raises OSError."""
        mounts = open_of(pid, "mnt")
        try:
            return cls(mounts, open_of(pid, "net"))
        except BaseException:
            os.close(mounts)
            raise

    def close(self) -> None:
        for fd in self:
            os.close(fd)


def open_of(pid: int | str, name: str) -> int:
    """Return a descriptor of the namespace `name` of a process. Raises OSError."""
    return os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def visit(kind: int, target: int, home: int) -> Generator[None]:
    """Stay in the namespace `target` of this kind until the end of the block. With a mount namespace, its root is the
    working directory (`mntns_install`)."""
    try:
        namespaces.setns(target, kind)
        yield
    finally:
        try:
            namespaces.setns(home, kind)
        except BaseException as error:
            # Not by `traceback`: to import that is a fifth of what a namespace entry costs.
            sys.excepthook(type(error), error, error.__traceback__)
            os._exit(1)  # a supervisor that is lost in a sandbox is worse than none: the next one takes over
