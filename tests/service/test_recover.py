"""The next daemon puts right what the one before left: each cell of the table in order.md, and each moment."""

from __future__ import annotations

import asyncio
import shutil
from enum import Enum, auto
from pathlib import Path
from typing import Any

import pytest
import service_world
from service_world import ME, Place, Rig, World, WorldBackend, put, until

from paddock.backends.base import Ending, SandboxPlan
from paddock.daemon.clock import Clock
from paddock.daemon.main.service import Service
from paddock.model import (
    CreateSandbox,
    CreateSnapshot,
    ExecSpec,
    GetSandbox,
    KillSandbox,
    Level,
    Limit,
    ListSandboxes,
    ListSnapshots,
    PauseSandbox,
    SandboxId,
    SandboxSpec,
    State,
    replace,
)
from tests.stand_ins import HOST

HERE = ExecSpec(argv=("echo", "here"))
BASE = (
    "INSERT INTO bases (id, repository, commit_id, branch, is_whole, created_at, used_at)"
    " VALUES (?, 'rp_1', ?, 'main', ?, 0, 0)"
)


class Recorded(Enum):
    CREATING = auto()
    RUNNING = auto()
    ASLEEP = auto()
    RESTORING = auto()
    ENDED = auto()


class Lives(Enum):
    YES = auto()
    NO = auto()
    UNKNOWN = auto()


class Left:
    """A sandbox with a snapshot, as a daemon that died has left it."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.id, self.snapshot = rig, SandboxId(""), ""

    async def begin(self, recorded: Recorded, lives: Lives) -> None:
        async with self.rig.service(memory=True) as service:
            self.id = (await service.perform(CreateSandbox(spec=SandboxSpec(name="n")), ME)).id
            self.file.write_text("good")
            self.snapshot = (await service.perform(CreateSnapshot(sandbox=self.id), ME)).id
            self.file.write_text("bad")
            plan = self.rig.world.places[self.id].plan
            if recorded is Recorded.ASLEEP:
                await service.perform(PauseSandbox(sandbox=self.id, to_disk=True), ME)
            match recorded:
                case Recorded.CREATING:
                    put(service, self.id, State.CREATING)
                case Recorded.RESTORING:
                    put(service, self.id, State.RESTORING, restoring=self.snapshot)
                case Recorded.ENDED:
                    put(service, self.id, State.KILLED, ended_at=Clock().wall())
                case _:
                    pass
        if lives is Lives.UNKNOWN:
            self.rig.world.refusal = "it does not answer"
        if lives is Lives.NO and self.id in self.rig.world.places:
            place = self.rig.world.places.pop(self.id)
            await place.end(Ending(limit=None, reason="it was killed"))
            shutil.rmtree(place.root)
        if lives is not Lives.NO and self.id not in self.rig.world.places:
            stray = self.rig.world.places[self.id] = Place(plan, self.rig.world.root / self.id)
            stray.root.mkdir(parents=True, exist_ok=True)

    @property
    def file(self) -> Path:
        return self.rig.state_dir / "pool" / self.id / "file"

    @property
    def lives(self) -> bool:
        place = self.rig.world.places.get(self.id)
        return place is not None and place.ended is None

    def recorded(self, service: Service) -> tuple[State, bool]:
        row = service.store.get(self.id)
        assert row is not None
        return row.state, self.lives


AFTERWARDS = {
    (Recorded.CREATING, Lives.YES): (State.FAILED, False),
    (Recorded.CREATING, Lives.NO): (State.FAILED, False),
    (Recorded.CREATING, Lives.UNKNOWN): (State.CREATING, True),
    (Recorded.RUNNING, Lives.YES): (State.RUNNING, True),
    (Recorded.RUNNING, Lives.NO): (State.FAILED, False),
    (Recorded.RUNNING, Lives.UNKNOWN): (State.RUNNING, True),
    (Recorded.ASLEEP, Lives.YES): (State.PAUSED, False),
    (Recorded.ASLEEP, Lives.NO): (State.PAUSED, False),
    (Recorded.ASLEEP, Lives.UNKNOWN): (State.PAUSED, True),
    (Recorded.RESTORING, Lives.YES): (State.RUNNING, True),
    (Recorded.RESTORING, Lives.NO): (State.RUNNING, True),
    (Recorded.RESTORING, Lives.UNKNOWN): (State.RESTORING, True),
    (Recorded.ENDED, Lives.YES): (State.KILLED, False),
    (Recorded.ENDED, Lives.NO): (State.KILLED, False),
    (Recorded.ENDED, Lives.UNKNOWN): (State.KILLED, True),
}


@pytest.mark.parametrize("cell", AFTERWARDS, ids=lambda cell: f"{cell[0].name.lower()}-{cell[1].name.lower()}")
async def test_every_cell_of_the_table(rig: Rig, cell: tuple[Recorded, Lives]) -> None:
    left = Left(rig)
    await left.begin(*cell)
    trees = rig.pool.names()
    async with rig.service(memory=True) as service:
        assert left.recorded(service) == AFTERWARDS[cell]
        if cell[1] is Lives.UNKNOWN:
            assert rig.pool.names() == trees, "what is not known deletes nothing"
            rig.world.refusal = None
            await service.recovery.sweep()  # it answers again
            known = AFTERWARDS[cell[0], Lives.YES]
            assert left.recorded(service) == known
        if cell[0] is Recorded.RESTORING:
            assert left.file.read_text() == "good"
        if cell[0] is Recorded.CREATING:
            await service.perform(CreateSandbox(spec=SandboxSpec(name="n")), ME)  # the name is free
        await service.recovery.sweep()
        orphans = {name for name in rig.pool.names() if name.startswith(("sb_", "rb_"))}
        assert orphans == {row.id for row in service.store.list()}


async def test_the_end_of_one_that_is_recorded_as_ended_is_forgotten(rig: Rig) -> None:
    left = Left(rig)
    await left.begin(Recorded.ENDED, Lives.YES)
    await rig.world.places[left.id].end(Ending(limit=None, reason="it was killed"))
    async with rig.service(memory=True):
        assert left.id not in rig.world.places


async def test_a_living_one_is_adopted_ahead_of_its_first_use(rig: Rig) -> None:
    left = Left(rig)
    await left.begin(Recorded.RUNNING, Lives.YES)
    async with rig.service() as service:
        await until(lambda: left.id in service.running._sandboxes)


async def test_a_sweep_buries_what_expired(rig: Rig) -> None:
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(spec=SandboxSpec(persistent=True)), ME)
    (rig.state_dir / "outputs" / made.id).mkdir(parents=True)
    await rig.world.places[made.id].end(Ending(limit=Limit.TTL, reason="its time was over"))
    async with rig.service() as service:
        await until(lambda: rig.pool.names() == ())
        await service.recovery.sweep()
        await until(lambda: not list((rig.state_dir / "outputs").iterdir()))
        (seen,) = await service.perform(ListSandboxes(ended=True), ME)
        assert (seen.state, seen.limit) == (State.KILLED, Limit.TTL)
        assert rig.world.places == {}


async def test_what_vanished_after_its_deadline_expired_and_before_it_failed(rig: Rig) -> None:
    now = [1000.0]
    clock = Clock(boottime=lambda: now[0])
    async with rig.service(clock=clock) as service:
        specs = [SandboxSpec(ttl_seconds=ttl, persistent=True) for ttl in (10, 100)]
        early, late = [await service.perform(CreateSandbox(spec=spec), ME) for spec in specs]
    rig.world.places.clear()
    now[0] += 50
    async with rig.service(clock=clock) as service:
        states = {s.id: (s.state, s.limit) for s in await service.perform(ListSandboxes(ended=True), ME)}
        assert states == {early.id: (State.KILLED, Limit.TTL), late.id: (State.FAILED, None)}


async def test_instances_trees_and_outputs_without_a_row_are_removed_and_others_left(rig: Rig) -> None:
    async with rig.service() as service:
        kept = await service.perform(CreateSandbox(), ME)
        orphan = SandboxId("sb_0000000000000000")
        plan = SandboxPlan(id=orphan, hostname="h", spec=SandboxSpec(), template=HOST, tree=orphan, deadline=1e12)
        await WorldBackend(rig.world).create(plan)
        rig.pool.create(orphan)
        rig.pool.create("tp_template")
        (rig.state_dir / "outputs" / orphan).mkdir(parents=True)
        await service.recovery.sweep()
        assert set(rig.world.places) == {kept.id}
        assert rig.pool.names() == (kept.id, "tp_template")
        assert not (rig.state_dir / "outputs" / orphan).exists()


async def test_a_sweep_leaves_a_create_that_is_under_way_alone(rig: Rig) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    def wait(_: object) -> object:
        entered.set()
        return go.wait()

    rig.world.before_create = wait
    async with rig.service() as service:

        async def sweep() -> None:
            await entered.wait()
            await service.recovery.sweep()
            go.set()

        made, _ = await asyncio.gather(service.perform(CreateSandbox(), ME), sweep())
        assert (await service.perform(GetSandbox(sandbox=made.id), ME)).state is State.RUNNING
        assert rig.pool.names() == (made.id,)


async def test_a_sweep_leaves_alone_what_was_made_while_it_asked(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig.service() as service:
        first = await service.perform(CreateSandbox(), ME)
        under_way, go, state = asyncio.Event(), asyncio.Event(), WorldBackend.state

        def wait(_: object) -> object:
            under_way.set()
            return go.wait()

        async def slowly(self: WorldBackend) -> Any:
            found = await state(self)
            go.set()
            await made
            return found

        rig.world.before_create = wait
        made = asyncio.ensure_future(service.perform(CreateSandbox(), ME))
        await under_way.wait()
        monkeypatch.setattr(WorldBackend, "state", slowly)
        await service.recovery.sweep()
        found = {one.id: one.state for one in await service.perform(ListSandboxes(ended=True), ME)}
        assert found == {first.id: State.RUNNING, (await made).id: State.RUNNING}


async def test_what_another_backend_says_of_an_id_is_not_said_of_the_sandbox(rig: Rig) -> None:
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(), ME)
        other = WorldBackend(World(rig.state_dir / "other"), level=Level.CONTAINER)
        place = other._world.places[made.id] = Place(rig.world.places[made.id].plan, rig.state_dir / "other")
        await place.end(Ending(limit=None, reason="the supervisor died while it was being made"))
        service.recovery._backends._loaded["container"] = other
        row = service.store.get(made.id)
        assert row is not None
        sandbox = replace(row.sandbox, id=SandboxId("sb_other"), state=State.KILLED, backend="container", ended_at=1e12)
        service.store.add(replace(row, sandbox=sandbox))
        await service.recovery.sweep()
        assert (await service.perform(GetSandbox(sandbox=made.id), ME)).state is State.RUNNING
        assert set(rig.world.places) == set(rig.pool.names()) == {made.id}


async def test_what_was_being_made_of_snapshots_bases_and_workshops_is_deleted(rig: Rig) -> None:
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(), ME)
        left, done = [await service.perform(CreateSnapshot(sandbox=made.id), ME) for _ in range(2)]
        store = service.store
        store.execute("UPDATE snapshots SET is_whole = 0 WHERE id = ?", (left.id,))
        for id, is_whole in (("bs_0000000000000000", 0), ("bs_1111111111111111", 1)):
            rig.pool.create(id)
            store.execute(BASE, (id, id, is_whole))
        store.execute("INSERT INTO workshops (id) VALUES ('wo_1')", ())
        rig.pool.create("wo_1")
    quarantine = rig.state_dir / "repositories" / "qu_left"
    (quarantine / "objects").mkdir(parents=True)
    async with rig.service() as service:
        assert [one.id for one in await service.perform(ListSnapshots(), ME)] == [done.id]
        assert set(rig.pool.names()) == {made.id, done.id, "bs_1111111111111111"}
        assert not quarantine.exists()


async def test_a_workshop_that_is_all_that_lives_is_ended_with_its_tree(rig: Rig) -> None:
    """No row of a sandbox names its backend."""
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(), ME)
        place = rig.world.places[made.id]
        await service.perform(KillSandbox(sandbox=made.id), ME)
        service.store.prune(1e12)
        service.store.execute("INSERT INTO workshops (id) VALUES ('wk_1')", ())
    rig.pool.create("wk_1")
    left = SandboxId("wk_1")
    rig.world.places[left] = Place(replace(place.plan, id=left), rig.world.root / "wk_1")
    async with rig.service():
        assert rig.world.places == {}
        assert rig.pool.names() == ()


async def test_a_step_of_recovery_that_fails_is_recorded_and_stops_no_other(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Left(rig)
    await left.begin(Recorded.CREATING, Lives.YES)
    with monkeypatch.context() as broken:

        async def fail(*_: object) -> None:
            raise OSError(5, "Input/output error")

        broken.setattr(service_world.Held, "kill", fail)
        async with rig.service() as service:
            assert left.recorded(service) == (State.CREATING, True)
            broken.undo()
            await service.recovery.sweep()
            assert left.recorded(service) == (State.FAILED, False)
    log = "".join(p.read_text() for p in (rig.state_dir / "audit").iterdir())
    assert "recovery.failed" in log


async def test_kill_and_sweep_at_once_agree(rig: Rig) -> None:
    async with rig.service() as service:
        made = [await service.perform(CreateSandbox(), ME) for _ in range(10)]
        kills = [service.perform(KillSandbox(sandbox=m.id), ME) for m in made]
        await asyncio.gather(*kills, service.recovery.sweep())
        assert {s.state for s in await service.perform(ListSandboxes(ended=True), ME)} == {State.KILLED}
        assert rig.pool.names() == ()


async def test_a_sweep_that_breaks_is_recorded_and_comes_round_again(rig: Rig) -> None:
    async with rig.service() as service:
        rig.world.refusal = None
        await service.perform(CreateSandbox(), ME)  # the sweep rests where nothing lives
        names, calls = rig.pool.names, [0]

        def broken() -> tuple[str, ...]:
            calls[0] += 1
            if calls[0] == 1:
                raise OSError(5, "Input/output error")
            return names()

        rig.pool.names = broken
        service.recovery._period = 0.0
        service._tasks.start(service.recovery.run(service.activity), name="sweep")
        await until(lambda: calls[0] >= 2)
    log = "".join(p.read_text() for p in (rig.state_dir / "audit").iterdir())
    assert "sweep.failed" in log
