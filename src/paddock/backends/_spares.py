"""Keep complete sandboxes ahead that belong to no caller yet, so that a create takes one instead of making it.

Each level says which creates are of one kind, and how to make and end a spare of a kind.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from paddock.backends._base import SandboxPlan
from paddock.errors import PaddockError

K = TypeVar("K")
_PAUSE_SECONDS = 0.1
_MOST_KINDS = 2
_REMEMBERED_KINDS = 8


class HasKind(Protocol[K]):
    kind: K


S = TypeVar("S", bound=HasKind[Any])


class Wish(msgspec.Struct, Generic[K], eq=False):
    """A kind that creates have asked for, and the plan of the first of them."""

    kind: K
    plan: SandboxPlan
    creates: int = 0
    refused: bool = False
    """No spare of it could be made. The next create of the kind has it tried again."""


class Spares(ABC, Generic[K, S]):
    """Spares of one backend: `count` of each of the two kinds that were used last, from the second create of a kind."""

    quiet_seconds = 1.0
    """A spare is made so long after the last create: the first command of a sandbox has the machine to itself."""

    def __init__(self, start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]], count: int | None) -> None:
        """`start` runs work that no caller waits for. `count` is what `config.toml` says."""
        self._start = start
        self._stock: list[S] = []
        self._wishes: list[Wish[K]] = []  # the latest last
        self._making: asyncio.Task[None] | None = None
        self._used_at = 0.0
        self._creates = 0
        self._closed = False
        self.count = 1 if count is None else count
        self.from_create = 2 if count is None else 1

    @abstractmethod
    async def _make(self, wish: Wish[K]) -> None:
        """Make one and put it into the stock. PaddockError, OSError."""

    @abstractmethod
    async def _end(self, spare: S) -> None:
        """End one that has left the stock, and delete its tree."""

    def _has_room(self, kind: K) -> bool:
        """Say whether the machine has enough for a spare that may never be used."""
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
        wish = next((wish for wish in self._wishes if wish.kind == kind), None)
        if wish is None:
            wish = Wish(kind, plan)
        else:
            self._wishes.remove(wish)
        self._wishes.append(wish)
        del self._wishes[:-_REMEMBERED_KINDS]
        wish.creates += 1
        wish.refused = False
        if not self._closed and (self._making is None or self._making.done()):
            self._making = self._start(self._stock_up())

    @property
    def ready(self) -> int:
        """How many there are to be had."""
        return len(self._stock)

    async def settled(self) -> None:
        """Return when none is being made any more."""
        while self._making is not None and not self._making.done():
            await asyncio.wait((self._making,))

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
    def _kept(self) -> list[Wish[K]]:
        """The kinds that were used last, and not once only."""
        return [wish for wish in self._wishes if wish.creates >= self.from_create][-_MOST_KINDS:]

    async def _end_others(self) -> None:
        kinds = [wish.kind for wish in self._kept]
        for spare in [spare for spare in self._stock if spare.kind not in kinds]:
            await self._retire(spare)

    def _next(self) -> Wish[K] | None:
        for wish in reversed(self._kept):
            there = sum(spare.kind == wish.kind for spare in self._stock)
            if there < self.count and not wish.refused:
                return wish
        return None

    async def _stock_up(self) -> None:
        """Make one at a time, when no create has come for a while. No caller hears that one can't be made."""
        loop = asyncio.get_running_loop()
        while (wish := self._next()) is not None:
            pause = self._used_at + self.quiet_seconds - loop.time()
            if self._creates:
                pause = max(pause, min(_PAUSE_SECONDS, self.quiet_seconds))
            if pause > 0:
                await asyncio.sleep(pause)
                continue
            await self._end_others()
            wish.refused = not self._has_room(wish.kind)
            if not wish.refused:
                try:
                    await self._make(wish)
                except (PaddockError, OSError):
                    wish.refused = True
