"""Of each base that is in use one copy ahead, with its inodes in the kernel's memory: a workspace begins with a rename.

Nobody keeps a row of it: its name follows from its base's, and it goes with that.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

from paddock.errors import AlreadyExists, NotFound
from paddock.storage._base import Pool
from paddock.storage._trees import look_at

from ._tasks import Tasks, in_thread

SPARE = "nx_"
_PAUSE_SECONDS = 0.5
"""Whoever has just taken one makes a sandbox over it, and has the machine for himself meanwhile."""
_MOST_LOOKED_AT = 20_000
"""Some 25 MB of the kernel's memory, which it takes back when it needs it."""


def spare_of(base: str) -> str:
    return SPARE + base.split("_", 1)[1]


class SpareTrees:
    def __init__(self, pool: Callable[[], Pool], tasks: Tasks) -> None:
        self._pool, self._tasks = pool, tasks
        self._making: set[str] = set()

    def take(self, base: str, name: str, *, limit_bytes: int | None) -> bool:
        """Whether there was one, which is tree `name` from now on."""
        if not self._wanted:
            return False
        try:
            self._pool().rename(spare_of(base), name, limit_bytes=limit_bytes)
        except NotFound:
            return False
        return True

    def make(self, base: str) -> None:
        """In a while, if there is none by then."""
        if self._wanted and base not in self._making:
            self._making.add(base)
            making = self._tasks.start(self._make(base), name=f"spare of {base}")
            making.add_done_callback(lambda _: self._making.discard(base))

    @property
    def _wanted(self) -> bool:
        """Elsewhere an empty layer is made as quickly, or a copy takes room that nobody may ever need."""
        return self._pool().driver == "btrfs"

    def discard(self, base: str) -> None:
        if self._wanted:
            self._pool().delete(spare_of(base))

    async def _make(self, base: str) -> None:
        await asyncio.sleep(_PAUSE_SECONDS)
        await in_thread(self._derive, base)  # it works in the pool, which is closed after us

    def _derive(self, base: str) -> None:
        pool, name = self._pool(), spare_of(base)
        with suppress(AlreadyExists, NotFound):  # one is there; the base is gone
            pool.derive(base, name)
            tree = pool.open(name)
            try:
                look_at(tree, _MOST_LOOKED_AT)
            finally:
                os.close(tree)
