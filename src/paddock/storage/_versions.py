"""Trees that are built once, whole or not at all, and are used by many programs at once: who builds, uses, deletes one.

Kept by locks of the kernel's, which end with their holder: one alone for who builds or deletes a tree, one together
for all who use it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from paddock.errors import NotFound
from paddock.storage._base import Pool
from paddock.storage._recipe import Progress
from paddock.storage._trees import DIRECTORY, ROOT, sync_file_system

Fill = Callable[[int, int], None]
"""Writes what is to be in a new tree, given descriptors of its directory and of its root."""

_BUILDING, _USED = ".lock", ".used"


class Versions:
    """Those of one pool. May be used by several threads and by several processes at once."""

    def __init__(self, pool: Pool, locks: Path) -> None:
        self._pool, self._locks = pool, locks
        self._held: dict[str, int] = {}  # trees that this program uses, by descriptors of their locks
        self._closed = False

    def close(self) -> None:
        """Lets go of the trees that were in use here."""
        self._closed = True
        while self._held:
            os.close(self._held.popitem()[1])

    def hold(self, tree: str) -> None:
        """From before it is looked for until this program ends, nobody discards it: the kernel keeps the lock."""
        if tree not in self._held:
            fd = self._open_lock(tree, _USED)
            fcntl.flock(fd, fcntl.LOCK_SH)
            if self._held.setdefault(tree, fd) != fd:  # another thread was quicker
                os.close(fd)
            if self._closed:  # meanwhile, by whoever did not wait for this thread
                self.let_go(tree)

    def let_go(self, tree: str) -> None:
        """This program does not use it any more."""
        fd = self._held.pop(tree, None)
        if fd is not None:
            os.close(fd)

    def is_built(self, tree: str) -> bool:
        try:
            os.close(self._pool.open(tree))
        except NotFound:
            return False
        return True

    def have(self, tree: str, words: str, fill: Fill, progress: Progress, *, on: str = "") -> None:
        """Builds it, if nobody has. It begins with the content of the tree `on`, or empty."""
        self.hold(tree)
        if not self.is_built(tree):
            with self._building(tree, words, progress):
                if not self.is_built(tree):  # by whoever held the lock
                    self._build(tree, words, fill, progress, on)

    def discard(self, tree: str) -> bool:
        """Deletes one, or what its builder has begun. False: a program that runs uses or builds it."""
        version = "tp" + tree[2:]
        with ExitStack() as stack:
            for lock in (_USED, _BUILDING):
                fd = self._open_lock(version, lock)
                stack.callback(os.close, fd)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
            self._pool.delete(tree)
        return True

    def _build(self, tree: str, words: str, fill: Fill, progress: Progress, on: str) -> None:
        """Builds under another name: what has the name of a version is whole, also after a power loss."""
        scratch = "tb" + tree.removeprefix("tp")
        self._pool.delete(scratch)  # a killed builder's
        progress(f"building {words}")
        if on:
            self._pool.snapshot(on, scratch, at_rest=True)
        else:
            self._pool.create(scratch)
        try:
            fd = self._pool.open(scratch)
            try:
                root = os.open(ROOT, DIRECTORY, dir_fd=fd)
                try:
                    fill(fd, root)
                    sync_file_system(root)
                finally:
                    os.close(root)
            finally:
                os.close(fd)
            self._pool.rename(scratch, tree)
        except BaseException:
            self._pool.delete(scratch)
            raise
        progress(f"{words} is ready")

    @contextmanager
    def _building(self, tree: str, words: str, progress: Progress) -> Generator[None]:
        fd = self._open_lock(tree, _BUILDING)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress(f"{words} is being built by another process")
                fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _open_lock(self, tree: str, kind: str) -> int:
        self._locks.mkdir(mode=0o700, exist_ok=True)
        return os.open(self._locks / (tree + kind), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
