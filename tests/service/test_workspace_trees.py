"""A sandbox over a workspace: what its plan has, what its row says, who may have it. Whose it is, a fake says."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from service_world import ME, Rig

from paddock.backends import TreeMount
from paddock.daemon.store.database import Row
from paddock.daemon.store.trees import WorkspaceTree
from paddock.errors import InvalidArgumentError, InvalidStateError, NotFoundError
from paddock.model import CreateSandbox, KillSandbox, ListSandboxes, Mount, OpenWorkspace, SandboxSpec


class OneWorkspace:
    """`task` of everybody; one sandbox at a time has it."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.free = True

    @asynccontextmanager
    async def reserve(self, reference: str, owner: str) -> AsyncGenerator[WorkspaceTree]:
        if reference != "task":
            raise NotFoundError(f"no workspace {reference!r}")
        yield WorkspaceTree("ws_1", ("bs_1",), "rp_1")

    def assign(self, row: Row) -> None:
        if not self.free:
            raise InvalidStateError("another sandbox writes it")
        self.taken.append(row.id)


def over(workspace: str = "task", **rest: object) -> CreateSandbox:
    return CreateSandbox(spec=SandboxSpec(workspace=workspace, **rest))  # type: ignore[arg-type]


async def test_it_sees_the_workspace_and_its_repository_and_its_row_says_so(rig: Rig) -> None:
    known = OneWorkspace()
    async with rig.service(workspaces=known) as service:
        made = await service.perform(over(), ME)
        assert rig.world.places[made.id].plan.trees == (
            TreeMount(tree="ws_1", target="/workspace", writable=True, layers=("bs_1",)),
            TreeMount(tree="rp_1", target="/run/paddock/repository", writable=False),
        )
        row = service.store.get(made.id)
        assert row is not None
        assert row.workspace == WorkspaceTree("ws_1", ("bs_1",), "rp_1")
        assert known.taken == [made.id]
        without = await service.perform(CreateSandbox(), ME)
        assert rig.world.places[without.id].plan.trees == ()


async def test_one_that_somebody_else_writes_is_refused_and_nothing_is_made(rig: Rig) -> None:
    known = OneWorkspace()
    known.free = False
    async with rig.service(workspaces=known) as service:
        for key in (None, "key"):
            with pytest.raises(InvalidStateError, match="another sandbox writes it"):
                await service.perform(CreateSandbox(spec=SandboxSpec(workspace="task"), idempotency_key=key), ME)
        with pytest.raises(NotFoundError):
            await service.perform(over("other"), ME)
        assert await service.perform(ListSandboxes(ended=True), ME) == ()
        assert (rig.pool.names(), rig.world.creates) == ((), 0)
        known.free = True
        made = await service.perform(CreateSandbox(spec=SandboxSpec(workspace="task"), idempotency_key="key"), ME)
        known.free = False
        again = await service.perform(CreateSandbox(spec=SandboxSpec(workspace="task"), idempotency_key="key"), ME)
        assert again.id == made.id, "the first call with that key made it"


async def test_the_end_of_a_sandbox_takes_nothing_of_its_workspace(rig: Rig) -> None:
    async with rig.service() as service:
        workspace = await service.perform(OpenWorkspace(name="task"), ME)
        made = await service.perform(over(), ME)
        await service.perform(KillSandbox(sandbox=made.id), ME)
        await service.recovery.sweep()
        assert rig.pool.names() == (workspace.id,)


async def test_what_cannot_be_is_refused_in_words(rig: Rig) -> None:
    async with rig.service() as service:
        with pytest.raises(NotFoundError, match="no workspace 'task'"):
            await service.perform(over(), ME)
        for spec, why in (
            (over(mounts=(Mount(source="/src"),)), "the workspace is at '/workspace'"),
            (over(mounts=(Mount(source="/src", target="/run/paddock/repository"),)), "the workspace is at"),
            (over(snapshot="sn_1"), "has the workspace as it was then"),
            (over(""), "an id or a name"),
        ):
            with pytest.raises(InvalidArgumentError, match=why):
                await service.perform(spec, ME)
