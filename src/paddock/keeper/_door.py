"""Going into the namespaces of a sandbox that is being made, and coming out again."""

from __future__ import annotations

import os
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from paddock.linux import namespaces


class Door(NamedTuple):
    """Descriptors of the namespaces of a spare that the keeper enters."""

    mounts: int
    names: int

    @classmethod
    def of(cls, pid: int) -> Door:
        mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return cls(mounts, os.open(f"/proc/{pid}/ns/uts", os.O_RDONLY | os.O_CLOEXEC))
        except BaseException:
            os.close(mounts)
            raise

    def close(self) -> None:
        os.close(self.mounts)
        os.close(self.names)


@contextmanager
def visit(home: Door, mounts: int, names: int | None = None) -> Generator[None, None, None]:
    """Enter the mount namespace `mounts`, and the one of host names, until the end of the block."""
    try:
        if names is not None:
            namespaces.setns(names, namespaces.NEWUTS)
        namespaces.setns(mounts, namespaces.NEWNS)
        yield
    finally:
        try:
            if names is not None:
                namespaces.setns(home.names, namespaces.NEWUTS)
            namespaces.setns(home.mounts, namespaces.NEWNS)
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # a keeper that is lost in a sandbox is worse than none: the next one takes over
