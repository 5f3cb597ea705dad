"""Repositories as what could go from a disk that is too full: those that nothing is checked out of."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paddock.errors import InvalidState
from paddock.model import GarbageItem
from paddock.storage._measure import measure

from ._clock import Clock
from ._garbage import Candidate
from ._needs import Need
from ._repository_store import RepositoryStore

if TYPE_CHECKING:
    from ._repositories import Repositories

_JUST_USED_SECONDS = 600.0
"""Who has acquired one is about to do something with it."""


class RepositoryCollector:
    def __init__(
        self,
        directory: Path,
        *,
        store: RepositoryStore,
        repositories: Callable[[], Repositories],
        needed: Callable[[], Mapping[str, tuple[Need, ...]]],
        clock: Clock,
    ) -> None:
        self._directory, self._store, self._repositories = directory, store, repositories
        self._needed, self._clock = needed, clock

    async def candidates(self) -> Sequence[Candidate]:
        found: list[Candidate] = []
        for id, url, used_at in self._store.by_use():
            item = GarbageItem(
                what=id,
                kind="repository",
                why=f"{url} can be fetched again",
                bytes=await asyncio.to_thread(_size, self._directory / id),
                kept_because=self._kept_because(id, used_at),
            )
            found.append(Candidate(item=item, only_when_full=True))
        return found

    async def take(self, item: GarbageItem) -> str | None:
        try:
            await self._repositories().remove(item.what)
        except InvalidState as error:
            return error.message
        return None

    def _kept_because(self, id: str, used_at: float) -> str | None:
        from paddock.storage.repositories import pins

        if self._clock.wall() - used_at < _JUST_USED_SECONDS:
            return "it was used a moment ago"
        users = [need.by for need in self._needed().get(id, ())] or list(pins.owners(self._directory / id))
        return f"{users[0]} needs its objects" if users else None


def _size(path: Path) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return measure(fd)
    finally:
        os.close(fd)
