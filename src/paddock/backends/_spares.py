"""Keep complete sandboxes ahead, so that a create takes one instead of making it.

Each level says which creates are of one kind, and how to make and end a spare of a kind.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

import msgspec

from paddock.backends.base import SandboxPlan
from paddock.errors import PaddockError
from paddock.supervisor.plan import CLAIM, JailPlan

K = TypeVar("K")
_PAUSE_SECONDS = 0.1
_MOST_KINDS = 2
_REMEMBERED_KINDS = 8


def common(jail: JailPlan) -> JailPlan | None:
    """Return `jail` without what a sandbox gets when it takes a spare. None: a test has it fail before that."""
    if jail.fault and not jail.fault.startswith(CLAIM):
        return None
    own = {"id": "", "hostname": "", "tree": "", "parent": "", "fault": ""}
    return jail._replace(**own, env={}, deadline=0.0, instance_id=0, idle_seconds=0.0, trace=False)


class Spare(msgspec.Struct, Generic[K], eq=False):
    """One that was made ahead. `kind`: which creates it is for."""

    kind: K


S = TypeVar("S", bound=Spare[Any])


class Demand(msgspec.Struct, Generic[K], eq=False):
    """A kind that creates have asked for, and the plan of the first of them."""

    kind: K
    plan: SandboxPlan
    creates: int = 0
    refused: bool = False
    """A spare could not be made. The next create of the kind tries again."""


class Spares(ABC, Generic[K, S]):
    """Keep spares of one backend: `count` of each of the two kinds used last, from the second create of a kind."""

    quiet_seconds = 1.0
    """Seconds after the last create until a spare is made: until then the first command has the machine for itself."""

    def __init__(self, start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]], count: int | None) -> None:
        """`start` runs work that no caller waits for. `count` is what `config.toml` says."""
        self._start = start
        self._stock: list[S] = []
        self._demands: list[Demand[K]] = []  # the latest last
        self._making: asyncio.Task[None] | None = None
        self._used_at = 0.0
        self._creates = 0
        self._closed = False
        self.count = 1 if count is None else count
        self.from_create = 2 if count is None else 1

    @abstractmethod
    async def _make(self, demand: Demand[K]) -> None:
        """Make one and put it into the stock. PaddockError, OSError."""

    @abstractmethod
    async def _end(self, spare: S) -> None:
        """End one that has left the stock, and delete its tree."""

    def _has_room(self, kind: K) -> bool:
        """Tell whether the machine has enough for a spare that may never be used."""
        return True

    @contextlib.contextmanager
    def creating(self) -> Generator[None]:
        """Begin no spare while a caller waits for a sandbox."""
        self._creates += 1
        try:
            yield
        finally:
            self._creates -= 1
            self._used_at = asyncio.get_running_loop().time()

    def _want(self, kind: K, plan: SandboxPlan) -> None:
        """Note a create of that kind, and have spares made if they are missing."""
        if not self.count:
            return
        demand = next((demand for demand in self._demands if demand.kind == kind), None)
        if demand is None:
            demand = Demand(kind, plan)
        else:
            self._demands.remove(demand)
        self._demands.append(demand)
        del self._demands[:-_REMEMBERED_KINDS]
        demand.creates += 1
        demand.refused = False
        if not self._closed and (self._making is None or self._making.done()):
            self._making = self._start(self._stock_up())

    async def aclose(self) -> None:
        """End all of them."""
        self._closed = True
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait((self._making,))
        for spare in list(self._stock):
            await self._retire(spare)

    def _leave(self, spare: S) -> None:
        self._stock.remove(spare)

    async def _retire(self, spare: S) -> None:
        self._leave(spare)
        await self._end(spare)

    @property
    def _kept(self) -> list[Demand[K]]:
        """Return the kinds that were used last, and more than once."""
        return [demand for demand in self._demands if demand.creates >= self.from_create][-_MOST_KINDS:]

    async def _end_others(self) -> None:
        kinds = [demand.kind for demand in self._kept]
        for spare in [spare for spare in self._stock if spare.kind not in kinds]:
            await self._retire(spare)

    def _next(self) -> Demand[K] | None:
        for demand in reversed(self._kept):
            ready = sum(spare.kind == demand.kind for spare in self._stock)
            if ready < self.count and not demand.refused:
                return demand
        return None

    async def _stock_up(self) -> None:
        """Make spares one by one, when no create has come for a while. Failures stay silent."""
        loop = asyncio.get_running_loop()
        while (demand := self._next()) is not None:
            pause = self._used_at + self.quiet_seconds - loop.time()
            if self._creates:
                pause = max(pause, min(_PAUSE_SECONDS, self.quiet_seconds))
            if pause > 0:
                await asyncio.sleep(pause)
                continue
            await self._end_others()
            demand.refused = not self._has_room(demand.kind)
            if not demand.refused:
                try:
                    await self._make(demand)
                except (PaddockError, OSError):
                    demand.refused = True
