"""`opened(remote)`: a sandbox over a workspace that begins with the default branch of a repository."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from spaces import Opener

from paddock import Sandbox, local
from paddock.model import CreateSandbox, ListRepositories, SandboxSpec, mint
from paddock.service._result_source import Begun
from paddock.service._workspace_tree import WorkspaceTree
from tests.conftest import SandboxFactory


class Fake:
    def __init__(self) -> None:
        self.known: dict[str, Begun] = {}

    async def resolve(self, reference: str, owner: str) -> WorkspaceTree:
        return self.known[reference].tree

    def take(self, row: Any) -> None: ...

    def begun(self, reference: str, owner: str) -> Begun:
        from paddock.errors import NotFound

        if reference not in self.known:
            raise NotFound(reference)
        return self.known[reference]


@pytest.fixture
def opened(sandbox: SandboxFactory, shared_state: Path) -> Generator[Opener]:
    from paddock._compose import connector

    made: list[Sandbox] = []
    sandbox()
    home = connector.home(shared_state)
    service: Any = home.door
    rooms, fake = service._rooms, Fake()
    rooms.sandboxes._workspaces = rooms.results._sources._known = fake

    async def make(remote: Path | None, name: str) -> None:
        id = mint("ws_")  # type: ignore[arg-type]
        if remote is None:
            return
        with service._gate.open(home.principal, ListRepositories()) as entry:
            acquired = await rooms.shelf.repositories.acquire(str(remote), None, 0.0, home.principal)
            base = await rooms.shelf.bases.get(acquired, "main", entry)
        layers = rooms.shelf.bases._pool().derive(base.id, id)
        tree = WorkspaceTree(id, layers, acquired.repository)
        fake.known[name] = fake.known[id] = Begun(
            id=id, name=name, tree=tree, url=acquired.url, branch="main", commit=acquired.commit
        )

    def open(remote: Path | None, task: str | None = None) -> Sandbox:
        name = task or f"t{len(fake.known)}"
        if remote is None:
            return sandbox()
        home.loop.run(make, remote, name)
        spec = SandboxSpec(workspace=name, name=task)
        box = Sandbox(local().perform(CreateSandbox(spec=spec)), local())
        made.append(box)
        return box

    yield open
    for box in made:
        box.kill()
