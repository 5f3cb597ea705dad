"""Going into other namespaces, such as those of a sandbox that is being made, and coming out again."""

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
def visit(kind: int, there: int, home: int) -> Generator[None]:
    """Be in the namespace `there` of this kind (`namespaces.NEWNS`) until the end of the block."""
    try:
        namespaces.setns(there, kind)
        yield
    finally:
        try:
            namespaces.setns(home, kind)
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # a keeper that is lost in a sandbox is worse than none: the next one takes over
