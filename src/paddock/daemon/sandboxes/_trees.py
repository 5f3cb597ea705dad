"""The trees of sandboxes: some are made ahead, in the call of a thread that deletes those of an ended sandbox.

The way to a thread and back costs more than a tree does. So a create that is like others before it takes an empty tree
that is there already. A daemon that is killed leaves trees without a row, which the next one's sweep deletes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from paddock.daemon.context import Component, Context
from paddock.daemon.store.database import Row
from paddock.daemon.tasks import in_thread
from paddock.errors import PaddockError
from paddock.model import Noun, SandboxId, mint

_LIFE_SECONDS = 30.0
"""After so long, what was made ahead last is deleted."""
_FROM_CREATE = 2
_MOST_AHEAD = 4
"""Trees of one kind."""


class Kind(NamedTuple):
    """What creates have in common that may take one another's tree."""

    layers: tuple[str, ...]
    limit_bytes: int


class SandboxTrees(Component):
    """`Pool.in_use` keeps sweeps from what was made ahead, until a row says that it is needed."""

    def __init__(self, context: Context, remove_outputs: Callable[[str], None]) -> None:
        super().__init__(context)
        self._remove_outputs = remove_outputs
        self._ready: dict[Kind, list[SandboxId]] = {}
        self._asked: Counter[Kind] = Counter()
        """Creates since something was made ahead the last time."""
        self._seen: Counter[Kind] = Counter()
        self._expiry: asyncio.TimerHandle | None = None

    def take(self, kind: Kind) -> SandboxId | None:
        """Return the id of a sandbox that is not there yet, and whose empty tree is. `keep` or `give_back` follows.

        None: there is no such tree.
        """
        self._asked[kind] += 1
        self._seen[kind] += 1
        ready = self._ready.get(kind)
        return ready.pop() if ready else None

    def keep(self, id: SandboxId) -> None:
        """From now on a row says that the tree is needed."""
        self._pool().in_use.discard(id)

    def give_back(self, kind: Kind, id: SandboxId) -> None:
        """Keep for another create what `take` returned."""
        self._ready.setdefault(kind, []).append(id)

    async def delete(self, row: Row) -> None:
        """Delete the trees and outputs of an ended sandbox. PlatformError names what would not go."""
        wanted = list(self._wanted())
        self._pool().in_use.update(id for _, id in wanted)
        made = await in_thread(self._delete_and_make, row, wanted)
        self._pool().in_use.difference_update(id for _, id in wanted[made:])
        for kind, id in wanted[:made]:
            self.give_back(kind, id)
        if made:
            if self._expiry is not None:
                self._expiry.cancel()
            self._expiry = asyncio.get_running_loop().call_later(_LIFE_SECONDS, self._expire)

    async def aclose(self) -> None:
        """Delete what was made ahead."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._asked.clear()
        self._seen.clear()
        ready, self._ready = self._ready, {}
        ids = [id for kind in ready.values() for id in kind]
        if ids:
            await in_thread(self._discard, ids)
            self._pool().in_use.difference_update(ids)

    def _expire(self) -> None:
        if not self._tasks.closed:
            self._tasks.start(self.aclose(), name="delete trees that were made ahead", finishes=True)

    def _wanted(self) -> Iterable[tuple[Kind, SandboxId]]:
        if self._config.spares == 0 or self._tasks.closed:
            return
        asked, self._asked = self._asked, Counter()
        for kind, count in asked.items():
            if self._seen[kind] >= _FROM_CREATE:
                for _ in range(min(count, _MOST_AHEAD) - len(self._ready.get(kind, ()))):
                    yield kind, SandboxId(mint(Noun.SANDBOX))

    def _delete_and_make(self, row: Row, wanted: Sequence[tuple[Kind, SandboxId]]) -> int:
        """In a thread. Return how many of `wanted` were made. The next create says why another could not be."""
        pool, made = self._pool(), 0
        with suppress(PaddockError, OSError):
            for kind, id in wanted:
                pool.create(id, layers=kind.layers, limit_bytes=kind.limit_bytes)
                made += 1
        for tree in row.own_trees:
            pool.delete(tree)
        self._remove_outputs(row.id)
        return made

    def _discard(self, ids: Sequence[SandboxId]) -> None:
        pool = self._pool()
        for id in ids:
            with suppress(PaddockError):  # a sweep finds it
                pool.delete(id)
