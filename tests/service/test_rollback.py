"""A rollback touches nothing before its copies are whole; whatever it had come to when its service died is finished."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from service_world import ME, Held, Place, Rig, put, until
from test_workspace_trees import OneWorkspace

from paddock.backends.base import Ending
from paddock.daemon.main.service import Service
from paddock.errors import InvalidStateError, ResourceExhaustedError, SandboxDiedError
from paddock.model import (
    CreateSandbox,
    CreateSnapshot,
    DeleteSnapshot,
    ExecSpec,
    ForkSandbox,
    GetSandbox,
    KillSandbox,
    Limit,
    ListSandboxes,
    ListSnapshots,
    OpenWorkspace,
    RollbackSandbox,
    RunExec,
    SandboxId,
    SandboxSpec,
    State,
)


class Scene:
    """A sandbox over a workspace, and a snapshot of both; then both were changed."""

    def __init__(self, rig: Rig, service: Service) -> None:
        self.rig, self.service = rig, service
        self.id = SandboxId("")
        self.snapshot = ""

    async def begin(self) -> Scene:
        for name in ("tp_host", "bs_1", "ws_1"):
            self.rig.pool.create(name)
        self.id = (await self.service.perform(CreateSandbox(spec=SandboxSpec(workspace="task")), ME)).id
        self.write(self.id, "good")
        self.write("ws_1", "good")
        self.snapshot = (await self.service.perform(CreateSnapshot(sandbox=self.id), ME)).id
        self.write(self.id, "bad")
        self.write("ws_1", "bad")
        return self

    def file(self, tree: str) -> Path:
        return self.rig.state_dir / "pool" / tree / "file"

    def write(self, tree: str, text: str) -> None:
        self.file(tree).parent.mkdir(exist_ok=True)
        self.file(tree).write_text(text)

    def read(self, *trees: str) -> list[str]:
        return [self.file(tree).read_text() for tree in trees]

    @property
    def place(self) -> Place:
        return self.rig.world.places[self.id]

    async def state(self) -> State:
        return (await self.service.perform(GetSandbox(sandbox=self.id), ME)).state

    async def rollback(self) -> None:
        await self.service.perform(RollbackSandbox(sandbox=self.id, snapshot=self.snapshot), ME)

    async def answers(self) -> bool:
        run = RunExec(sandbox=self.id, spec=ExecSpec(argv=("echo", "here")))
        return (await self.service.perform(run, ME)).stdout == "here\n"

    def left_half_way(self, service: Service) -> None:
        """As a service that died in a rollback leaves the row."""
        put(service, self.id, State.RESTORING, restoring=self.snapshot)


@asynccontextmanager
async def cut_off(
    rig: Rig, over: OneWorkspace, *, alive: bool = False, before: Callable[[Scene], object] = lambda scene: None
) -> AsyncGenerator[Scene]:
    """Its service has died in a rollback, and the sandbox is dead (unless `alive`); another service is there."""
    async with rig.service(workspaces=over) as service:
        scene = await Scene(rig, service).begin()
        scene.left_half_way(service)
    if not alive:
        await scene.place.end(Ending(limit=None, reason="it was killed"))
    before(scene)
    async with rig.service(workspaces=over) as scene.service:
        yield scene


@pytest.fixture
def over() -> OneWorkspace:
    return OneWorkspace()


def full(rig: Rig, monkeypatch: pytest.MonkeyPatch, names: Callable[[str], bool]) -> None:
    """From now on there is no room for such trees."""
    real = rig.pool.snapshot

    def snapshot(source: str, name: str, **options: Any) -> None:
        if names(name):
            raise ResourceExhaustedError(f"cannot copy tree {name!r}: No space left on device")
        real(source, name, **options)

    monkeypatch.setattr(rig.pool, "snapshot", snapshot)


async def test_it_takes_the_workspace_back_too(rig: Rig, over: OneWorkspace) -> None:
    async with rig.service(workspaces=over) as service:
        scene = await Scene(rig, service).begin()
        before = scene.place
        await scene.rollback()
        assert scene.read(scene.id, "ws_1") == ["good", "good"]
        assert scene.place is not before
        assert scene.place.plan.trees == before.plan.trees
        assert await scene.answers()
        assert set(rig.pool.names()) == {"tp_host", "bs_1", "ws_1", scene.id, scene.snapshot, f"{scene.snapshot}_w"}


@pytest.mark.parametrize("which", ["rb_", "_w"])
async def test_where_there_is_no_room_it_runs_on_and_nothing_is_lost(
    rig: Rig, over: OneWorkspace, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service(workspaces=over) as service:
        scene = await Scene(rig, service).begin()
        trees, before = rig.pool.names(), scene.place
        full(rig, monkeypatch, lambda name: name.startswith("rb_") and which in name)
        with pytest.raises(ResourceExhaustedError):
            await scene.rollback()
        assert await scene.state() is State.RUNNING
        assert scene.place is before
        assert before.ended is None
        assert await scene.answers()
        assert scene.read(scene.id, "ws_1") == ["bad", "bad"]
        assert rig.pool.names() == trees
        monkeypatch.undo()
        await scene.rollback()
        assert scene.read(scene.id, "ws_1") == ["good", "good"]


async def test_one_that_died_by_itself_meanwhile_is_said_to_have_died_of_what_it_did(
    rig: Rig, over: OneWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service(workspaces=over) as service:
        scene = await Scene(rig, service).begin()
        begun, go = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def slow(*_: object, **__: object) -> None:
            loop.call_soon_threadsafe(begun.set)
            go.wait(60)
            raise ResourceExhaustedError("full")

        monkeypatch.setattr(rig.pool, "snapshot", slow)
        rollback = asyncio.ensure_future(scene.rollback())
        await begun.wait()
        await scene.place.end(Ending(limit=Limit.MEMORY, reason="memory ran out"))
        go.set()
        with pytest.raises(ResourceExhaustedError):
            await rollback
        seen = await service.perform(GetSandbox(sandbox=scene.id), ME)
        assert (seen.state, seen.limit) == (State.KILLED, Limit.MEMORY)
        assert "ws_1" in rig.pool.names()


async def test_one_that_is_killed_meanwhile_stays_dead(
    rig: Rig, over: OneWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service(workspaces=over) as service:
        scene = await Scene(rig, service).begin()
        entered, go = asyncio.Event(), asyncio.Event()

        def wait(_: object) -> object:
            entered.set()
            return go.wait()

        rig.world.before_create = wait
        rollback = asyncio.ensure_future(scene.rollback())
        await entered.wait()
        await service.perform(KillSandbox(sandbox=scene.id), ME)
        with pytest.raises(SandboxDiedError, match=f"killed by {ME.name}"):
            await rollback
        assert await scene.state() is State.KILLED
        assert [place for place in rig.world.places.values() if place.ended is None] == []
        await until(lambda: set(rig.pool.names()) == {"tp_host", "bs_1", "ws_1", scene.snapshot, f"{scene.snapshot}_w"})


def whatever_it_had_come_to() -> Iterator[tuple[str, Callable[[Scene], None]]]:
    def nothing(scene: Scene) -> None: ...

    def beside(scene: Scene) -> None:
        scene.write(f"rb_{scene.id}", "good")

    def beside_of_an_earlier_one(scene: Scene) -> None:
        scene.write(f"rb_{scene.id}", "stale")
        scene.write(f"rb_{scene.id}_w", "stale")

    def both_beside(scene: Scene) -> None:
        beside(scene)
        scene.write(f"rb_{scene.id}_w", "good")

    def one_in_place(scene: Scene) -> None:
        scene.write(scene.id, "good")
        scene.write(f"rb_{scene.id}_w", "good")

    def one_place_empty(scene: Scene) -> None:
        both_beside(scene)
        scene.rig.pool.delete(scene.id)

    def both_in_place(scene: Scene) -> None:
        scene.write(scene.id, "good")
        scene.write("ws_1", "good")

    for stage in (
        nothing,
        beside,
        beside_of_an_earlier_one,
        both_beside,
        one_in_place,
        one_place_empty,
        both_in_place,
    ):
        yield stage.__name__, stage


@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.parametrize("stage", [pytest.param(stage, id=name) for name, stage in whatever_it_had_come_to()])
async def test_what_a_service_that_died_had_come_to_is_finished(
    rig: Rig, over: OneWorkspace, stage: Callable[[Scene], None], alive: bool
) -> None:
    async with cut_off(rig, over, alive=alive, before=stage) as scene:
        assert await scene.state() is State.RUNNING
        assert await scene.answers()
        assert scene.read(scene.id, "ws_1") == ["good", "good"]
        expected = {"tp_host", "bs_1", "ws_1", scene.id, scene.snapshot, f"{scene.snapshot}_w"}
        assert set(rig.pool.names()) == expected


async def test_who_uses_it_is_told_that_there_is_no_room_for_the_rest(
    rig: Rig, over: OneWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    full(rig, monkeypatch, lambda name: name.startswith("rb_"))
    async with cut_off(rig, over) as scene:
        with pytest.raises(ResourceExhaustedError):
            await scene.answers()
        monkeypatch.undo()
        assert await asyncio.gather(scene.answers(), scene.answers()) == [True, True]
        assert scene.read(scene.id, "ws_1") == ["good", "good"]


async def test_the_rest_of_one_waits_until_there_is_room(
    rig: Rig, over: OneWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    full(rig, monkeypatch, lambda name: name.startswith("rb_"))
    async with cut_off(rig, over) as scene:
        await scene.service.recovery.sweep()
        assert await scene.state() is State.RESTORING
        assert scene.read(scene.id, "ws_1") == ["bad", "bad"]
        monkeypatch.undo()
        await scene.service.recovery.sweep()
        assert await scene.state() is State.RUNNING
        assert scene.read(scene.id, "ws_1") == ["good", "good"]


@pytest.mark.parametrize("lacking", ["room", "snapshot"])
async def test_one_that_lives_runs_on_if_the_rest_cannot_be_done(
    rig: Rig, over: OneWorkspace, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(scene: Scene) -> None:
        if lacking == "room":
            full(rig, monkeypatch, lambda name: name.startswith("rb_"))
        else:
            with closing(sqlite3.connect(rig.state_dir / "paddock.db", isolation_level=None)) as db:
                db.execute("DELETE FROM snapshots")

    async with cut_off(rig, over, alive=True, before=lacks) as scene:
        assert await scene.state() is State.RUNNING
        assert await scene.answers()
        assert scene.read(scene.id, "ws_1") == ["bad", "bad"]


async def test_two_at_once_take_it_back_one_after_the_other(rig: Rig, over: OneWorkspace) -> None:
    async with rig.service(workspaces=over) as service:
        scene = await Scene(rig, service).begin()
        await asyncio.gather(scene.rollback(), scene.rollback())
        assert await scene.answers()
        assert scene.read(scene.id, "ws_1") == ["good", "good"]


async def test_who_hears_late_of_the_end_of_the_one_before_leaves_the_next_one_alone(
    rig: Rig, over: OneWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, real = asyncio.Event(), Held.wait_ended

    async def late(held: Held) -> Ending:
        ending = await real(held)
        await gate.wait()
        return ending

    monkeypatch.setattr(Held, "wait_ended", late)
    async with rig.service(workspaces=over) as service:
        scene = await Scene(rig, service).begin()
        before = service.store.get(scene.id)
        assert before is not None
        held = service.running.get(before)
        assert held is not None
        await scene.rollback()
        held.dying = False  # as one that did not know
        watch = asyncio.ensure_future(service.running._watch(held))
        gate.set()
        await watch
        assert "taken back to a snapshot" in (await service.running.dead(before)).message
        assert await scene.state() is State.RUNNING
        assert await scene.answers()


async def test_killed_while_its_trees_are_copied_it_does_not_touch_what_its_workspace_has_by_then(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill waits for the copy: the workspace is nobody else's before."""
    async with rig.service() as service:
        rig.pool.create("tp_host")
        await service.perform(OpenWorkspace(name="task"), ME)
        over_it = CreateSandbox(spec=SandboxSpec(workspace="task"))
        box = await service.perform(over_it, ME)
        snapshot = await service.perform(CreateSnapshot(sandbox=box.id), ME)
        begun, go, loop, copy = asyncio.Event(), threading.Event(), asyncio.get_running_loop(), rig.pool.snapshot

        def slowly(source: str, name: str, **options: Any) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert go.wait(60)
            copy(source, name, **options)

        monkeypatch.setattr(rig.pool, "snapshot", slowly)
        rollback = asyncio.ensure_future(service.perform(RollbackSandbox(sandbox=box.id, snapshot=snapshot.id), ME))
        await begun.wait()
        kill = asyncio.ensure_future(service.perform(KillSandbox(sandbox=box.id), ME))
        for _ in range(20):
            await asyncio.sleep(0)
        with pytest.raises(InvalidStateError, match="has workspace"):
            await service.perform(over_it, ME)
        go.set()
        assert (await kill).state is State.KILLED
        with pytest.raises(SandboxDiedError):
            await rollback
        monkeypatch.undo()
        next = await service.perform(over_it, ME)
        assert (await service.perform(GetSandbox(sandbox=next.id), ME)).state is State.RUNNING
        await until(lambda: not {box.id, f"rb_{box.id}", f"rb_{box.id}_w"} & set(rig.pool.names()))


async def test_what_lies_beside_one_that_is_not_being_taken_back_is_swept(rig: Rig, over: OneWorkspace) -> None:
    async with rig.service(workspaces=over) as service:
        scene = await Scene(rig, service).begin()
        before = rig.pool.names()
        for name in (f"rb_{scene.id}", f"rb_{scene.id}_w", "rb_sb_nothing"):
            rig.pool.create(name)
        await service.recovery.sweep()
        assert rig.pool.names() == before


async def test_only_what_has_the_same_below_it_can_be_laid_in_its_place(rig: Rig, over: OneWorkspace) -> None:
    async with rig.service(workspaces=over) as service:
        scene = await Scene(rig, service).begin()
        without = await service.perform(CreateSandbox(), ME)
        snapshot = await service.perform(CreateSnapshot(sandbox=without.id), ME)
        for sandbox, of, why in (
            (scene.id, snapshot.id, "has no workspace, and"),
            (without.id, scene.snapshot, "has a workspace, and"),
        ):
            with pytest.raises(InvalidStateError, match=why):
                await service.perform(RollbackSandbox(sandbox=sandbox, snapshot=of), ME)
        rig.pool.delete("bs_1")
        with pytest.raises(InvalidStateError, match=r"workspace of snapshot .* lies over bs_1, which is gone"):
            await scene.rollback()


async def test_a_child_and_a_sandbox_from_a_snapshot_have_a_workspace_of_their_own(
    rig: Rig, over: OneWorkspace
) -> None:
    async with rig.service(workspaces=over) as service:
        scene = await Scene(rig, service).begin()
        first, second = await service.perform(ForkSandbox(sandbox=scene.id, count=2), ME)
        third = await service.perform(CreateSandbox(spec=SandboxSpec(snapshot=scene.snapshot)), ME)
        assert over.taken == [scene.id], "nobody else writes the workspace itself"
        for box, text in ((first, "bad"), (second, "bad"), (third, "good")):
            assert scene.read(box.id, f"{box.id}_w") == [text, text]
            own, objects = rig.world.places[box.id].plan.trees
            assert (own.tree, own.target, own.layers) == (f"{box.id}_w", "/workspace", ("bs_1",))
            assert objects.tree == "rp_1"
            assert box.spec.workspace is None
        grandchild = (await service.perform(ForkSandbox(sandbox=first.id), ME))[0]
        assert scene.read(f"{grandchild.id}_w") == ["bad"]
        await service.recovery.sweep()
        for box in (first, second, third, grandchild):
            assert f"{box.id}_w" in rig.pool.names()
            await service.perform(KillSandbox(sandbox=box.id), ME)
            await until(lambda box=box: not {box.id, f"{box.id}_w"} & set(rig.pool.names()))
        await service.perform(KillSandbox(sandbox=scene.id), ME)
        await service.perform(DeleteSnapshot(snapshot=scene.snapshot), ME)
        await until(
            lambda: set(rig.pool.names()) - {"bs_1"} == {"tp_host", "ws_1"}
        )  # (no row of a base needs that one)


async def test_copies_of_both_or_of_none(rig: Rig, over: OneWorkspace, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig.service(workspaces=over) as service:
        scene = await Scene(rig, service).begin()
        before, snapshots = rig.pool.names(), await service.perform(ListSnapshots(), ME)
        full(rig, monkeypatch, lambda name: name.endswith("_w"))
        for action in (
            CreateSnapshot(sandbox=scene.id, name="n"),
            ForkSandbox(sandbox=scene.id, count=2),
            CreateSandbox(spec=SandboxSpec(snapshot=scene.snapshot)),
        ):
            with pytest.raises(ResourceExhaustedError):
                await service.perform(action, ME)  # type: ignore[arg-type]
        assert rig.pool.names() == before
        assert await service.perform(ListSnapshots(), ME) == snapshots
        assert [box.id for box in await service.perform(ListSandboxes(), ME)] == [scene.id]
        assert await scene.answers()


async def test_what_is_dirty_is_written_before_the_sandbox_stands(
    rig: Rig, over: OneWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service(workspaces=over) as service:
        scene = await Scene(rig, service).begin()
        flushed: list[tuple[str, int]] = []
        monkeypatch.setattr(rig.pool, "flush", lambda name: flushed.append((name, scene.place.frozen)))
        for much in (False, True):
            monkeypatch.setattr("paddock.daemon.sandboxes._copies.much_is_dirty", lambda much=much: much)
            await service.perform(CreateSnapshot(sandbox=scene.id), ME)
            assert flushed == ([(scene.id, 0), ("ws_1", 0)] if much else [])
