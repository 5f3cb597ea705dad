"""Trees that are built once, whole or not at all, and are used by many sandboxes at once."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable

from paddock.linux.descriptors import closing
from paddock.storage._base import Pool
from paddock.storage._recipe import Progress
from paddock.storage._trees import DIRECTORY, ROOT, is_there, sync_file_system

Fill = Callable[[int, int], None]
"""Writes what is to be in a new tree, given descriptors of its directory and of its root."""


class Versions:
    """Those of one pool. May be used by several threads at once. What was asked for is in use until `let_go`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        """Of each tree one thread at a time looks whether it is built, builds it, or deletes it."""

    def is_built(self, tree: str) -> bool:
        with self._turns[tree]:
            return self._is_there(tree)

    def let_go(self, tree: str) -> None:
        self._pool.in_use.discard(tree)

    def have(self, tree: str, words: str, fill: Fill, progress: Progress, *, on: str = "") -> None:
        """Builds it, if nobody has. It begins with the content of the tree `on`, or empty."""
        turn = self._turns[tree]
        if not turn.acquire(blocking=False):
            progress(f"{words} is being built")
            turn.acquire()
        try:
            if not self._is_there(tree):
                self._build(tree, words, fill, progress, on)
        finally:
            turn.release()

    def discard(self, tree: str) -> bool:
        """Deletes one, or what its builder has begun. False: it is in use, or being built."""
        version = "tp" + tree[2:]
        turn = self._turns[version]
        if not turn.acquire(blocking=False):
            return False
        try:
            if version in self._pool.in_use:
                return False
            self._pool.delete(tree)
        finally:
            turn.release()
        return True

    def _is_there(self, tree: str) -> bool:
        self._pool.in_use.add(tree)
        return is_there(self._pool, tree)

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
            with closing(self._pool.open(scratch)) as fd, closing(os.open(ROOT, DIRECTORY, dir_fd=fd)) as root:
                fill(fd, root)
                sync_file_system(root)
            self._pool.rename(scratch, tree)
        except BaseException:
            self._pool.delete(scratch)
            raise
        progress(f"{words} is ready")
