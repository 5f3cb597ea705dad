"""What the door needs to have repositories: the cache, checkouts of it, and workshops to make those in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from paddock.audit import AuditLog
from paddock.keeper.layout import REPOSITORIES
from paddock.model import Acquired, Principal
from paddock.storage._base import Pool

from ._bases import Bases
from ._clock import Clock
from ._needs import Need
from ._providers import Backends, Templates
from ._repository_collector import RepositoryCollector
from ._repository_store import RepositoryStore
from ._store import Store
from ._submodules import Submodules
from ._tasks import Tasks
from ._workshop import Workshops

if TYPE_CHECKING:
    from ._repositories import CredentialSource, Repositories


class Shelf:
    def __init__(
        self,
        state_dir: Path,
        *,
        store: Store,
        backends: Backends,
        pool: Callable[[], Pool],
        templates: Templates,
        tasks: Tasks,
        clock: Clock,
        audit: AuditLog,
        credentials: CredentialSource | None,
        needed: Callable[[], Mapping[str, tuple[Need, ...]]],
    ) -> None:
        self._directory, self._store, self._clock = state_dir / REPOSITORIES, store, clock
        self._credentials = credentials
        self.workshops = Workshops(
            store=store,
            backends=backends,
            pool=pool,
            templates=templates,
            tasks=tasks,
            clock=clock,
            audit=audit,
        )
        self.bases = Bases(
            self._directory,
            store=store,
            pool=pool,
            workshops=self.workshops,
            tasks=tasks,
            clock=clock,
            audit=audit,
            needed=needed,
            submodules=Submodules(self._acquire, audit),
        )

        self.unused = RepositoryCollector(
            self._directory,
            store=RepositoryStore(store),
            repositories=lambda: self.repositories,
            needed=needed,
            clock=clock,
        )

    @cached_property
    def repositories(self) -> Repositories:
        from ._repositories import Repositories  # with all that git needs, which a sandbox does not

        return Repositories(
            self._directory,
            store=RepositoryStore(self._store),
            clock=self._clock,
            credentials=self._credentials,
            forget_bases=self.bases.forget,
        )

    async def _acquire(self, url: str, ref: str, principal: Principal, home: str) -> Acquired:
        return await self.repositories.acquire(url, ref, math.inf, principal, home=home)

    def needs(self) -> Iterable[Need]:
        """Of trees: bases that are recorded, and workshops that are open."""
        yield from self.bases.needs()
        yield from self.workshops.needs()
