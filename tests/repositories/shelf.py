"""The cache as one program has it, without the rest of a service."""

from __future__ import annotations

from pathlib import Path

from paddock.daemon.clock import Clock
from paddock.daemon.store.repositories import RepositoryStore
from paddock.daemon.workspaces.repositories import Repositories
from paddock.model import Acquired, Principal
from paddock.storage.git import Bounds, Credential, HostGit, Remote
from tests.contexts import context

ALICE, BOB = Principal("local:1"), Principal("local:2")
STRANGER = Principal("key:1")


class Shelf:
    def __init__(self, state_dir: Path, *, bounds: Bounds | None = None) -> None:
        self.directory = state_dir / "repositories"
        self.credentials: dict[str, Credential] = {}
        self.now = 0.0
        self._clock = Clock(boottime=lambda: Clock().boottime() + self.now)
        self.context = context(state_dir, clock=self._clock, credentials=self._credential)
        self.store = RepositoryStore(self.context.store)
        self.git = HostGit(self.directory, bounds=bounds or Bounds())
        self.repositories = Repositories(self.context)
        self.repositories.git = self.git

    async def _credential(self, principal: Principal, remote: Remote) -> Credential | None:
        return self.credentials.get(principal.id)

    async def acquire(
        self, url: str, ref: str | None = None, *, max_age: float = 0.0, by: Principal = ALICE
    ) -> Acquired:
        return await self.repositories.acquire(url, ref, max_age, by)

    async def delete(self, url: str, *, by: Principal = ALICE) -> None:
        await self.repositories.remove(self.repositories._find(url, by.id).id)

    def path(self, acquired: Acquired) -> Path:
        return self.directory / acquired.repository

    def close(self) -> None:
        self.context.store.close()
        self.context.audit.close()
