from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping

import pytest
from service_world import HOST, ME, Rig, World, WorldBackend, until

from paddock.backends._base import Ending, SandboxPlan
from paddock.model import (
    CreateSandbox,
    CreateSnapshot,
    GetSandbox,
    KillSandbox,
    Level,
    Limit,
    ListSandboxes,
    ListSnapshots,
    Sandbox,
    SandboxId,
    SandboxSpec,
    State,
)
from paddock.service import Clock
from paddock.service._store import Row

BASE = (
    "INSERT INTO bases (id, repository, commit_id, branch, holder, created_at, used_at)"
    " VALUES (?, 'rp_1', ?, 'main', ?, 0, 0)"
)


async def test_the_first_sweep_runs_by_itself_and_buries_what_expired(rig: Rig) -> None:
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(spec=SandboxSpec(persistent=True)), ME)
    (rig.state_dir / "outputs" / made.id).mkdir(parents=True)
    await rig.world.places[made.id].end(Ending(limit=Limit.TTL, reason="its time was over"))
    async with rig.service(sweeps=True) as service:
        await until(lambda: rig.pool.names() == ())
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
        assert await service.expiry.once()
        assert set(rig.world.places) == {kept.id}
        assert rig.pool.names() == (kept.id, "tp_template")
        assert not (rig.state_dir / "outputs" / orphan).exists()


async def test_an_instance_whose_row_has_ended_is_killed(rig: Rig) -> None:
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(), ME)
        service._store.move(made.id, State.RUNNING, State.KILLED)
        await service.expiry.once()
        assert rig.world.places == {}
        assert rig.pool.names() == ()


async def test_a_create_whose_service_died_is_undone(rig: Rig) -> None:
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(idempotency_key="k"), ME)
        dead = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
        await dead.wait()
        row = service._store.get(made.id)
        assert row is not None
        left = Sandbox(**{**vars(row.sandbox), "id": "sb_11111111", "state": State.CREATING})
        service._store.add(Row(left, row.deadline, row.boot_id, f"{row.boot_id}:{dead.pid}:1:x"))
        rig.pool.create("sb_11111111")
        await service.expiry.once()
        seen = await service.perform(GetSandbox(sandbox="sb_11111111"), ME)
        assert (seen.state, seen.reason) == (State.FAILED, "the service that was making it died")
        assert rig.pool.names() == (made.id,)


async def test_a_create_that_is_under_way_elsewhere_is_left_alone(rig: Rig) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    def wait(_: object) -> object:
        entered.set()
        return go.wait()

    rig.world.before_create = wait
    async with rig.service() as maker, rig.service() as sweeper:

        async def sweep() -> None:
            await entered.wait()
            assert await sweeper.expiry.once()
            go.set()

        made, _ = await asyncio.gather(maker.perform(CreateSandbox(), ME), sweep())
        assert (await sweeper.perform(GetSandbox(sandbox=made.id), ME)).state is State.RUNNING
        assert rig.pool.names() == (made.id,)


async def test_a_create_that_was_done_since_its_row_was_read_is_left_alone(rig: Rig) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    def wait(_: object) -> object:
        entered.set()
        return go.wait()

    rig.world.before_create = wait
    async with rig.service() as service:

        async def read() -> tuple[Row, ...]:
            await entered.wait()
            rows = service._store.list()
            go.set()
            return rows

        made, rows = await asyncio.gather(service.perform(CreateSandbox(), ME), read())
        assert [row.state for row in rows] == [State.CREATING]
        (checked,) = await service._rooms.live.check_all(rows)  # as a sweep that was busy meanwhile
        assert checked.state is State.RUNNING
        assert (await service.perform(GetSandbox(sandbox=made.id), ME)).state is State.RUNNING


async def test_a_create_that_was_done_since_the_backend_was_asked_is_left_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    def wait(_: object) -> object:
        entered.set()
        return go.wait()

    async with rig.service() as service:
        first = await service.perform(CreateSandbox(), ME)
        rig.world.before_create = wait
        making = asyncio.ensure_future(service.perform(CreateSandbox(), ME))
        await entered.wait()
        said = WorldBackend.living

        async def living(backend: WorldBackend) -> Mapping[SandboxId, Ending | None]:
            before = await said(backend)
            go.set()
            await making
            return before

        monkeypatch.setattr(WorldBackend, "living", living)
        checked = await service._rooms.live.check_all(service._store.list())
        assert [row.state for row in checked] == [State.RUNNING, State.RUNNING]
        assert set(rig.world.places) == set(rig.pool.names()) == {first.id, (await making).id}


async def test_what_another_backend_says_of_an_id_is_not_said_of_the_sandbox(rig: Rig) -> None:
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(), ME)
        row = service._store.get(made.id)
        assert row is not None
        other = WorldBackend(World(rig.state_dir / "other"), level=Level.CONTAINER)
        unfinished = Ending(limit=None, reason="the keeper died while it was being made")
        await service.expiry._reconciler._instances(other, {made.id: unfinished}, {made.id: row})
        assert (await service.perform(GetSandbox(sandbox=made.id), ME)).state is State.RUNNING
        assert set(rig.world.places) == set(rig.pool.names()) == {made.id}


async def test_a_snapshot_that_was_done_since_all_were_listed_is_kept(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(), ME)
        left, done = [await service.perform(CreateSnapshot(sandbox=made.id), ME) for _ in range(2)]
        store, delete = service._store, rig.pool.delete
        store.execute("UPDATE snapshots SET holder = 'another-boot:1:1:x'", ())
        store.execute("UPDATE snapshots SET created_at = 0 WHERE id = ?", (left.id,))  # the first of the list

        def meanwhile(name: str) -> None:
            """The program that makes the other one comes to the end, and ends."""
            delete(name)
            if name == left.id:
                assert service._rooms.snapshots._store.whole(done.id)

        monkeypatch.setattr(rig.pool, "delete", meanwhile)
        assert await service.expiry.once()
        assert [one.id for one in await service.perform(ListSnapshots(), ME)] == [done.id]
        assert set(rig.pool.names()) == {made.id, done.id}


async def test_a_base_that_was_done_since_all_were_listed_is_kept(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig.service() as service:
        store, delete = service._store, rig.pool.delete
        left, done = "bs_0000000000000000", "bs_1111111111111111"
        for id in (left, done):
            rig.pool.create(id)
            store.execute(BASE, (id, id, "another-boot:1:1:x"))

        def meanwhile(name: str) -> None:
            """The program that makes the other one comes to the end, and ends."""
            delete(name)
            if name == left:
                store.execute("UPDATE bases SET holder = NULL WHERE id = ?", (done,))

        monkeypatch.setattr(rig.pool, "delete", meanwhile)
        service._rooms.shelf.bases.sweep()
        assert rig.pool.names() == (done,)
        assert [base.id for base in service._rooms.shelf.bases.of("rp_1")] == [done]


async def test_of_many_services_one_sweeps_until_it_goes_or_its_lease_runs_out(rig: Rig) -> None:
    now = [1000.0]
    clock = Clock(boottime=lambda: now[0])
    async with rig.service(clock=clock) as one, rig.service(clock=clock) as two:
        assert await one.expiry.once()
        assert not await two.expiry.once()
        assert await one.expiry.once()
        now[0] += 1000
        assert await two.expiry.once()
        assert not await one.expiry.once()
        await two.aclose()
        assert await one.expiry.once()


async def test_the_lease_of_a_dead_process_is_free(rig: Rig) -> None:
    async with rig.service() as service:
        service._store.take_lease("reaper", f"other-boot:{os.getpid()}:1:x", 1e18, over=None)
        assert await service.expiry.once()


async def test_kill_and_sweep_at_once_agree(rig: Rig) -> None:
    async with rig.service() as one, rig.service() as two:
        made = [await one.perform(CreateSandbox(), ME) for _ in range(10)]
        await asyncio.gather(*(two.perform(KillSandbox(sandbox=m.id), ME) for m in made), one.expiry.once())
        assert {s.state for s in await one.perform(ListSandboxes(ended=True), ME)} == {State.KILLED}
        assert rig.pool.names() == ()


async def test_a_sweep_that_breaks_is_recorded_and_comes_round_again(rig: Rig) -> None:
    async with rig.service() as service:
        rig.world.refusal = None
        names, calls = rig.pool.names, [0]

        def broken() -> tuple[str, ...]:
            calls[0] += 1
            if calls[0] == 1:
                raise OSError(5, "Input/output error")
            return names()

        rig.pool.names = broken
        service.expiry._period = 0.0
        service._tasks.start(service.expiry.run(), name="sweep")
        await until(lambda: calls[0] >= 2)
    log = "".join(p.read_text() for p in (rig.state_dir / "audit").iterdir())
    assert "sweep.failed" in log
