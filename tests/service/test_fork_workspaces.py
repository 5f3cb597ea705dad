"""Snapshot, fork and rollback of real sandboxes over a workspace, on each kind of pool."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from service_world import ME, until

from paddock.daemon.main.service import Service
from paddock.daemon.store.database import Row
from paddock.daemon.store.trees import WorkspaceTree
from paddock.errors import NotFoundError
from paddock.model import (
    CreateSandbox,
    CreateSnapshot,
    DeleteSnapshot,
    ExecSpec,
    ForkSandbox,
    KillSandbox,
    ListSandboxes,
    RollbackSandbox,
    RunExec,
    SandboxSpec,
    StartExec,
)
from paddock.policy import local_policy
from paddock.storage import prepare
from paddock.supervisor.layout import TREE_ID_BASE
from tests.conformance.trees import Root
from tests.conftest import private_state
from tests.supervisor.conftest import Yard, clear, open_yard

# Each number is written to the sandbox's own tree first, then to its workspace.
WRITER = """
cd /home/user; n=0
while :; do n=$((n + 1)); for file in a /workspace/b; do echo $n > $file.new; mv $file.new $file; done; done
"""

Scene = Callable[["Stage"], Awaitable[None]]


class OverABase:
    def __init__(self, tree: WorkspaceTree) -> None:
        self._tree = tree

    @asynccontextmanager
    async def reserve(self, reference: str, owner: str) -> AsyncGenerator[WorkspaceTree]:
        if reference != "task":
            raise NotFoundError(reference)
        yield self._tree

    def assign(self, row: Row) -> None: ...


class Stage:
    def __init__(self, yard: Yard, service: Service) -> None:
        self.yard, self.service = yard, service

    async def sh(self, sandbox: str, script: str) -> str:
        spec = ExecSpec(argv=("sh", "-c", f"cd /home/user; {script}"))
        result = await self.service.perform(RunExec(sandbox=sandbox, spec=spec), ME)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    async def create(self, **spec: str) -> str:
        return (await self.service.perform(CreateSandbox(spec=SandboxSpec(**spec)), ME)).id  # type: ignore[arg-type]

    async def kill(self, *ids: str) -> None:
        for id in ids:
            await self.service.perform(KillSandbox(sandbox=id), ME)


@pytest.fixture(scope="module", params=["the best", "overlay", "copy"])
def state_of_module(request: pytest.FixtureRequest) -> Generator[Path]:
    """One for each driver."""
    with private_state() as directory:
        prepare(directory, driver=None if request.param == "the best" else request.param)
        yield directory


@pytest.fixture
def play(module_state: Path) -> Callable[[Scene], None]:
    """Runs a scene over a workspace `ws_1` that was derived from the base `bs_1`."""

    @asynccontextmanager
    async def stage() -> AsyncGenerator[Stage]:
        async with open_yard(module_state) as yard:
            yard.pool.create("bs_1")
            with Root(yard.pool, "bs_1") as root:
                (root / "base").write_text("base\n")
                if os.getuid() == 0:
                    for path in (".", "base"):
                        os.chown(root / path, TREE_ID_BASE + 1000, TREE_ID_BASE + 1000)
            tree = WorkspaceTree("ws_1", yard.pool.derive("bs_1", "ws_1"))
            service = Service(
                module_state,
                backends=[yard.backend],
                pool=lambda: yard.pool,
                templates=lambda: yard.templates,
                policy=local_policy(os.getuid()),
            )
            service.creation._workspaces = cast("Any", OverABase(tree))
            try:
                yield Stage(yard, service)
            finally:
                for box in await service.perform(ListSandboxes(), ME):
                    await service.perform(KillSandbox(sandbox=box.id), ME)
                await service.aclose()
                clear(yard)

    def perform(scene: Scene) -> None:
        async def act() -> None:
            async with stage() as made:
                await scene(made)

        asyncio.run(act())

    return perform


def test_the_workspace_goes_along_and_each_has_its_own(
    play: Callable[[Scene], None],
) -> None:
    async def scene(on: Stage) -> None:
        parent = await on.create(workspace="task")
        await on.sh(parent, "cat /workspace/base; echo mine > own; echo good > /workspace/file; mkdir /workspace/d")
        snapshot = (await on.service.perform(CreateSnapshot(sandbox=parent), ME)).id
        await on.sh(parent, "echo bad > /workspace/file; rm /workspace/base; rmdir /workspace/d; echo bad > own")
        children = [box.id for box in await on.service.perform(ForkSandbox(sandbox=parent, count=2), ME)]
        for child in children:
            assert await on.sh(child, "cat own /workspace/file; ls /workspace") == "bad\nbad\nfile\n"
            await on.sh(child, f"echo {child} > /workspace/file")
        assert await on.sh(parent, "cat /workspace/file") == "bad\n"
        again = await on.create(snapshot=snapshot)
        assert await on.sh(again, "cat own /workspace/file /workspace/base; ls /workspace") == (
            "mine\ngood\nbase\nbase\nd\nfile\n"
        )
        await on.service.perform(RollbackSandbox(sandbox=parent, snapshot=snapshot), ME)
        assert await on.sh(parent, "cat own /workspace/file /workspace/base") == "mine\ngood\nbase\n"
        assert await on.sh(children[0], "cat /workspace/file") == f"{children[0]}\n"
        await on.sh(parent, "echo last > /workspace/file; sync /workspace/file")
        await on.kill(parent, again, *children)
        await on.service.perform(DeleteSnapshot(snapshot=snapshot), ME)
        await until(lambda: {name for name in on.yard.pool.names() if name[:3] != "tp_"} == {"bs_1", "ws_1"})
        next = await on.create(workspace="task")
        assert await on.sh(next, "cat /workspace/file; ls /home/user") == "last\n"
        await on.kill(next)

    play(scene)


def test_both_are_of_one_instant(play: Callable[[Scene], None]) -> None:
    async def scene(on: Stage) -> None:
        parent = await on.create(workspace="task")
        await on.sh(parent, "echo 0 > a; echo 0 > /workspace/b")
        spec = ExecSpec(argv=("sh", "-c", WRITER))
        handle = await on.service.perform(StartExec(sandbox=parent, spec=spec, background=True), ME)
        for _ in range(3):
            children = [box.id for box in await on.service.perform(ForkSandbox(sandbox=parent, count=2), ME)]
            seen = [tuple(map(int, (await on.sh(child, "cat a /workspace/b")).split())) for child in children]
            await on.kill(*children)
            assert len(set(seen)) == 1
            assert seen[0][0] - seen[0][1] in (0, 1), "b was written after a: no instant had these two"
        await handle.aclose()
        await on.kill(parent)

    play(scene)
