"""Rollbacks beside others, at any moment: of each sandbox one is left, and what others have by then is left alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from service_world import ME, Rig, WorldBackend
from test_rollback import DEAD, Scene
from test_workspace_trees import OneWorkspace

from paddock.backends._base import Ending
from paddock.errors import InvalidState, ResourceExhausted
from paddock.model import (
    CreateSandbox,
    CreateSnapshot,
    GetSandbox,
    KillSandbox,
    OpenWorkspace,
    RollbackSandbox,
    SandboxId,
    SandboxSpec,
    State,
)
from paddock.service._rollback import Rollback
from paddock.service._store import Store

PATIENCE_SECONDS = 60.0


@pytest.fixture
def over() -> OneWorkspace:
    return OneWorkspace()


@pytest.mark.parametrize("same", [True, False])
async def test_of_two_at_once_one_takes_it_back_and_the_other_is_refused(
    rig: Rig, over: OneWorkspace, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    async with rig.service(workspaces=over) as service, rig.service(workspaces=over) as another:
        scene = await Scene(rig, service).begin()
        begun, go, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()
        copy, begin = rig.pool.snapshot, Rollback._rollback
        begins = 0

        def slowly(source: str, name: str, **options: Any) -> None:
            if not begun.is_set():
                loop.call_soon_threadsafe(begun.set)
                assert go.wait(PATIENCE_SECONDS)
            copy(source, name, **options)

        async def second_is_late(self: Rollback, *of: Any) -> Any:
            nonlocal begins
            begins += 1
            if begins == 2:  # it has seen the sandbox running
                await begun.wait()
            return await begin(self, *of)

        monkeypatch.setattr(rig.pool, "snapshot", slowly)
        monkeypatch.setattr(Rollback, "_rollback", second_is_late)
        action = RollbackSandbox(sandbox=scene.id, snapshot=scene.snapshot)
        both = [asyncio.ensure_future(each.perform(action, ME)) for each in (service, service if same else another)]
        try:
            (refused,), (goes_on,) = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for each in (service, another):
                await each.expiry.once()  # it is in good hands
        finally:
            go.set()
            await asyncio.wait(both)
        assert begins == 2
        assert isinstance(refused.exception(), InvalidState)
        assert goes_on.exception() is None
        assert await scene.state() is State.RUNNING
        assert await scene.answers()
        assert scene.read(scene.id, "ws_1") == ["good", "good"]


async def test_one_that_begins_while_another_gives_up_is_in_good_hands(
    rig: Rig, over: OneWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service(workspaces=over) as service:
        scene = await Scene(rig, service).begin()
        begun, go, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()
        copy, said = rig.pool.snapshot, WorldBackend.living
        copies, second = 0, list[asyncio.Future[None]]()

        def no_room_at_first(source: str, name: str, **options: Any) -> None:
            nonlocal copies
            copies += 1
            if copies == 1:
                raise ResourceExhausted("no space left on device")
            if copies == 2:
                loop.call_soon_threadsafe(begun.set)
                assert go.wait(PATIENCE_SECONDS)
            copy(source, name, **options)

        async def living(backend: WorldBackend) -> Mapping[SandboxId, Ending | None]:
            if not second:  # asked by the one that gives up
                second.append(asyncio.ensure_future(scene.rollback()))
                await begun.wait()
            return await said(backend)

        monkeypatch.setattr(rig.pool, "snapshot", no_room_at_first)
        monkeypatch.setattr(WorldBackend, "living", living)
        try:
            with pytest.raises(ResourceExhausted):
                await scene.rollback()
            assert begun.is_set()
            assert await service.expiry.once()
        finally:
            go.set()
            await asyncio.wait(second)
        assert second[0].exception() is None
        assert await scene.state() is State.RUNNING
        assert scene.read(scene.id, "ws_1") == ["good", "good"]


@pytest.mark.parametrize("again", [False, True])
async def test_one_that_stayed_as_it_was_while_the_rest_of_another_was_done_is_not_taken_back(
    rig: Rig, over: OneWorkspace, again: bool
) -> None:
    async with rig.service(workspaces=over) as service, rig.service(workspaces=over) as next:
        scene = await Scene(rig, service).begin()
        first = await service.perform(CreateSandbox(), ME)
        snapshot = await service.perform(CreateSnapshot(sandbox=first.id), ME)
        move = service._store.move
        assert move(first.id, State.RUNNING, State.RESTORING, restoring=snapshot.id, holder=DEAD, of=0)
        service._store.execute("UPDATE sandboxes SET created_at = 0 WHERE id = ?", (first.id,))  # the first of the list
        scene.left_half_way(service)

        def stays(_: object) -> None:
            """The program whose rollback it was had found no room for it, and has ended since it was looked at."""
            rig.world.before_create = None
            assert move(scene.id, State.RESTORING, State.RUNNING, of=0)
            scene.write("ws_1", "written since")
            if again:  # another one, whose service lives
                holder = service._rooms.live.holder
                assert move(scene.id, State.RUNNING, State.RESTORING, restoring=scene.snapshot, holder=holder, of=0)

        rig.world.before_create = stays
        assert await next.expiry.once()
        row = service._store.get(scene.id)
        assert row is not None
        assert (row.state, row.incarnation) == (State.RESTORING if again else State.RUNNING, 0)
        assert scene.read(scene.id, "ws_1") == ["bad", "written since"]
        if again:
            assert move(scene.id, State.RESTORING, State.RUNNING, of=0)


async def test_killed_while_its_trees_are_put_in_place_it_does_not_touch_what_its_workspace_has_by_then(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service() as service, rig.service() as another:
        rig.pool.create("tp_host")
        workspace = await service.perform(OpenWorkspace(name="task"), ME)
        over_it = CreateSandbox(spec=SandboxSpec(workspace="task"))
        box = await service.perform(over_it, ME)
        snapshot = await service.perform(CreateSnapshot(sandbox=box.id), ME)
        copied, deletes, go, loop = threading.Event(), asyncio.Event(), threading.Event(), asyncio.get_running_loop()
        copy, delete = rig.pool.snapshot, rig.pool.delete

        def copies(source: str, name: str, **options: Any) -> None:
            copy(source, name, **options)
            if name.endswith("_w"):  # the last of them
                copied.set()

        def slowly(name: str) -> None:
            if copied.is_set() and not deletes.is_set() and threading.current_thread() is not threading.main_thread():
                loop.call_soon_threadsafe(deletes.set)
                assert go.wait(PATIENCE_SECONDS)
            delete(name)

        monkeypatch.setattr(rig.pool, "snapshot", copies)
        monkeypatch.setattr(rig.pool, "delete", slowly)
        rollback = asyncio.ensure_future(service.perform(RollbackSandbox(sandbox=box.id, snapshot=snapshot.id), ME))
        try:
            await deletes.wait()
            await another.perform(KillSandbox(sandbox=box.id), ME)
            next = await another.perform(over_it, ME)
            file = rig.state_dir / "pool" / workspace.id / "file"
            file.write_text("written by its next owner")
        finally:
            go.set()
            await asyncio.wait((rollback,))
        assert isinstance(rollback.exception(), InvalidState)
        assert file.read_text() == "written by its next owner"
        assert (await another.perform(GetSandbox(sandbox=next.id), ME)).state is State.RUNNING
        assert set(rig.pool.names()) >= {next.id, workspace.id, snapshot.id}
        assert not {box.id, f"rb_{box.id}", f"rb_{box.id}_w"} & set(rig.pool.names())


async def test_nobody_kills_it_between_the_last_look_and_the_renames(
    rig: Rig, over: OneWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service(workspaces=over) as service:
        scene = await Scene(rig, service).begin()
        impatient, exchange = Store(service._store.path, busy_seconds=0.0), rig.pool.exchange
        exchanged = list[str]()

        def with_a_kill(one: str, other: str) -> None:
            with pytest.raises(ResourceExhausted):  # it would have to wait
                impatient.move(scene.id, State.RESTORING, State.KILLED, ended_at=0.0)
            exchange(one, other)
            exchanged.append(other)

        monkeypatch.setattr(rig.pool, "exchange", with_a_kill)
        await scene.rollback()
        impatient.close()
        assert exchanged == [scene.id, "ws_1"]
        assert await scene.answers()
        assert scene.read(scene.id, "ws_1") == ["good", "good"]
