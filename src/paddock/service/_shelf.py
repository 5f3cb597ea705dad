"""Repositories as the service has them: the cache, checkouts of it, and workshops to make those in."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from paddock.errors import InvalidState
from paddock.keeper.layout import REPOSITORIES
from paddock.model import (
    Acquired,
    AcquireRepository,
    DeleteRepository,
    ListRepositories,
    Principal,
    Repository,
)
from paddock.storage._trees import measure

from ._bases import Bases
from ._context import Component, Context, handles
from ._garbage import Candidate, candidate
from ._gate import Entry
from ._repository_store import RepositoryStore
from ._workshop import Workshops

if TYPE_CHECKING:
    from ._repositories import Repositories

_JUST_USED_SECONDS = 600.0
"""Who has acquired one is about to do something with it."""


class Shelf(Component):
    """Collects, from a disk that is too full, repositories that nothing is checked out of."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.directory, self._rows = self._state_dir / REPOSITORIES, RepositoryStore(self._store)
        self.workshops = Workshops(context)
        self.bases = Bases(context, self.workshops, self._acquire)

    @cached_property
    def repositories(self) -> Repositories:
        from ._repositories import Repositories  # with all that git needs, which a sandbox does not

        return Repositories(self._context, self.bases.forget)

    @handles(AcquireRepository)
    async def acquire(self, action: AcquireRepository, entry: Entry) -> Acquired:
        acquired = await self.repositories.acquire(action.url, action.ref, action.max_age_seconds, entry.principal)
        entry.done({"repository": acquired.repository, "commit": acquired.commit, "ref": acquired.ref})
        return acquired

    @handles(ListRepositories)
    async def list(self, action: ListRepositories, entry: Entry) -> tuple[Repository, ...]:
        return self._rows.list(entry.principal.id)

    @handles(DeleteRepository)
    async def delete(self, action: DeleteRepository, entry: Entry) -> None:
        await self.repositories.delete(action.repository, entry.principal)

    async def candidates(self) -> Sequence[Candidate]:
        found: list[Candidate] = []
        for id, url, used_at in self._rows.by_use():
            size, kept = await asyncio.to_thread(_size, self.directory / id), self._kept_because(id, used_at)
            why, take = f"{url} can be fetched again", partial(self._take, id)
            found.append(candidate(id, "repository", why, size, take, kept=kept, only_when_full=True))
        return found

    async def _take(self, id: str) -> str | None:
        try:
            await self.repositories.remove(id)
        except InvalidState as error:
            return error.message
        return None

    def _kept_because(self, id: str, used_at: float) -> str | None:
        from paddock.storage.repositories import pins

        if self._clock.wall() - used_at < _JUST_USED_SECONDS:
            return "it was used a moment ago"
        users = [need.by for need in self._needs.by_tree().get(id, ())] or list(pins.owners(self.directory / id))
        return f"{users[0]} needs its objects" if users else None

    async def _acquire(self, url: str, ref: str, principal: Principal, home: str) -> Acquired:
        return await self.repositories.acquire(url, ref, math.inf, principal, home=home)


def _size(path: Path) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return measure(fd)
    finally:
        os.close(fd)
