"""Workspaces that could leave a pool that is too full: clean ones first, then old ones, none whose work is not kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from paddock.audit import AuditLog
from paddock.errors import NotFound
from paddock.model import GarbageItem
from paddock.storage._base import Pool

from ._evictions import Evictions
from ._garbage import Candidate


class WorkspaceCollector:
    def __init__(self, evictions: Evictions, pool: Callable[[], Pool], audit: AuditLog) -> None:
        self._evictions, self._pool, self._audit = evictions, pool, audit

    async def candidates(self) -> Sequence[Candidate]:
        pool, found = self._pool(), list[Candidate]()
        # None goes from a pool that has room; then it does not matter which one would be first.
        full = pool.marks.reached(await asyncio.to_thread(pool.space))
        for one in await self._evictions.evictable(look=full):
            try:
                size = await asyncio.to_thread(pool.measure, one.id)
            except NotFound:
                continue  # it was deleted meanwhile
            why = f"workspace {one.name}: {one.why}"
            item = GarbageItem(what=one.id, kind="workspace", why=why, bytes=size, kept_because=one.refusal)
            found.append(Candidate(item=item, only_when_full=True))
        return found

    async def take(self, item: GarbageItem) -> str | None:
        await self._evictions.evict(item.what)
        self._audit.event("workspace.evicted", workspace=item.what, message=item.why)
        return None
