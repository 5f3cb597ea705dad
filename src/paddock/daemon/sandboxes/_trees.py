"""The trees of sandboxes: made ahead of a create and deleted after a kill, several in one call of a thread.

The way to a thread and back costs more than a tree does. So a kill is answered before its tree is deleted, and a create
that is like the one before it takes an empty tree that is there already. Each batch makes as many as were asked for
since the batch before it. A daemon that is killed leaves trees without a row, which the next one's sweep deletes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from paddock.daemon.context import Component, Context
from paddock.daemon.store.database import Row
from paddock.daemon.tasks import in_thread
from paddock.errors import PaddockError
from paddock.model import Noun, SandboxId, mint

_BATCH_SECONDS = 0.02
_LIFE_SECONDS = 30.0
"""After so long without a create, what was made ahead is deleted."""
_MOST_AHEAD = 4
"""Trees of one kind."""


class Kind(NamedTuple):
    """What the creates have in common that may take one another's tree."""

    layers: tuple[str, ...]
    limit_bytes: int


class _Ended(NamedTuple):
    id: str
    trees: tuple[str, ...]


class SandboxTrees(Component):
    """Until a row says that a tree is needed, and from when none says so, `Pool.in_use` keeps sweeps from it."""

    def __init__(self, context: Context, remove_outputs: Callable[[str], None]) -> None:
        super().__init__(context)
        self._remove_outputs = remove_outputs
        self._ready: dict[Kind, list[SandboxId]] = {}
        self._asked: Counter[Kind] = Counter()
        self._ended: list[_Ended] = []
        self._batch: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def take(self, kind: Kind) -> SandboxId | None:
        """Return the id of a sandbox that is not there yet, and whose empty tree is. `keep` or `give_back` follows.

        None: no such tree is there. The next create of the kind finds one.
        """
        if self._config.spares == 0:
            return None
        self._asked[kind] += 1
        self._begin_soon()
        ready = self._ready.get(kind)
        return ready.pop() if ready else None

    def keep(self, id: SandboxId) -> None:
        """From now on a row says that the tree is needed."""
        self._pool().in_use.discard(id)

    def give_back(self, kind: Kind, id: SandboxId) -> None:
        """Keep for another create what `take` returned."""
        self._ready.setdefault(kind, []).append(id)

    def delete(self, row: Row) -> None:
        """Delete the trees and outputs of an ended sandbox with the next batch."""
        self._pool().in_use.update(row.own_trees)
        self._ended.append(_Ended(row.id, row.own_trees))
        self._begin_soon()

    async def aclose(self) -> None:
        """Delete what has ended, and what was made ahead."""
        for timer in (self._batch, self._expiry):
            if timer is not None:
                timer.cancel()
        self._asked.clear()
        self._give_up()
        await self._work()

    def _begin_soon(self) -> None:
        if self._batch is None and not self._tasks.closed:
            self._batch = asyncio.get_running_loop().call_later(_BATCH_SECONDS, self._begin)

    def _begin(self) -> None:
        self._batch = None
        if not self._tasks.closed:
            self._tasks.start(self._work(), name="make and delete trees", finishes=True)

    async def _work(self) -> None:
        ended, self._ended = self._ended, []
        asked, self._asked = self._asked, Counter()
        wanted = [
            kind
            for kind, count in asked.items()
            for _ in range(min(count, _MOST_AHEAD) - len(self._ready.get(kind, ())))
        ]
        if not ended and not wanted:
            return
        made = [(kind, SandboxId(mint(Noun.SANDBOX))) for kind in wanted]
        self._pool().in_use.update(id for _, id in made)
        there, failures = await in_thread(self._do, ended, made)
        self._pool().in_use.difference_update(tree for one in ended for tree in one.trees)
        self._pool().in_use.difference_update(id for kind, id in made if (kind, id) not in there)
        for kind, id in there:
            self.give_back(kind, id)
        if there:
            if self._expiry is not None:
                self._expiry.cancel()
            self._expiry = asyncio.get_running_loop().call_later(_LIFE_SECONDS, self._expire)
        if failures:
            raise failures[0]

    def _do(
        self, ended: Sequence[_Ended], wanted: Sequence[tuple[Kind, SandboxId]]
    ) -> tuple[list[tuple[Kind, SandboxId]], list[PaddockError]]:
        """In a thread. Return what was made, and what could not be deleted. That something can't be made ahead is no
        failure: the next create says why."""
        pool, failures = self._pool(), list[PaddockError]()
        for one in ended:
            for tree in one.trees:
                try:
                    pool.delete(tree)
                except PaddockError as error:
                    failures.append(error)
            self._remove_outputs(one.id)
        there: list[tuple[Kind, SandboxId]] = []
        with suppress(PaddockError, OSError):
            for kind, id in wanted:
                pool.create(id, layers=kind.layers, limit_bytes=kind.limit_bytes)
                there.append((kind, id))
        return there, failures

    def _expire(self) -> None:
        self._expiry = None
        self._give_up()
        self._begin_soon()

    def _give_up(self) -> None:
        self._ended.extend(_Ended(id, (id,)) for ready in self._ready.values() for id in ready)
        self._ready.clear()
