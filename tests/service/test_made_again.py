"""One that was taken back to a snapshot is made again under its id: what happened to the one before is over."""

from __future__ import annotations

import asyncio

import pytest
from service_world import ME, Held, Rig, WorldBackend

from paddock.backends._base import Ending
from paddock.errors import KeeperUnavailable
from paddock.model import (
    CreateSandbox,
    CreateSnapshot,
    ExecSpec,
    GetSandbox,
    KillSandbox,
    RollbackSandbox,
    RunExec,
    SandboxId,
    SandboxSpec,
    State,
)
from paddock.service import Service


async def a_while() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def said(service: Service, id: str) -> str:
    return (await service.perform(RunExec(sandbox=id, spec=ExecSpec(argv=("echo", "here"))), ME)).stdout


async def two_services_hold_it(rig: Rig, first: Service, second: Service) -> tuple[str, str]:
    rig.pool.create("tp_host")
    made = await first.perform(CreateSandbox(spec=SandboxSpec(persistent=True)), ME)
    snapshot = await first.perform(CreateSnapshot(sandbox=made.id), ME)
    assert await said(second, made.id) == "here\n"
    return made.id, snapshot.id


async def test_another_service_that_hears_late_of_the_end_leaves_the_next_one_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, real = asyncio.Event(), Held.wait_ended

    async def late(held: Held) -> Ending:
        ending = await real(held)
        await gate.wait()
        return ending

    monkeypatch.setattr(Held, "wait_ended", late)
    async with rig.service() as first, rig.service() as second:
        id, snapshot = await two_services_hold_it(rig, first, second)
        await first.perform(RollbackSandbox(sandbox=id, snapshot=snapshot), ME)
        gate.set()
        await a_while()
        for service in (first, second):
            assert (await service.perform(GetSandbox(sandbox=id), ME)).state is State.RUNNING
            assert await said(service, id) == "here\n"
        assert id in rig.pool.names()
        await second.perform(KillSandbox(sandbox=id), ME)
        assert id not in rig.pool.names()


async def test_a_sweep_that_saw_the_one_before_dead_leaves_the_next_one_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service() as first, rig.service() as second:
        id, snapshot = await two_services_hold_it(rig, first, second)
        backend = second._backends.named("jail")
        seen, go = asyncio.Event(), asyncio.Event()
        real = backend.living

        async def slow() -> object:
            found = {**await real(), id: Ending(limit=None, reason="it died")}
            seen.set()
            await go.wait()
            return found

        monkeypatch.setattr(backend, "living", slow)
        sweep = asyncio.ensure_future(second.expiry.once())
        await seen.wait()
        await first.perform(RollbackSandbox(sandbox=id, snapshot=snapshot), ME)
        go.set()
        monkeypatch.setattr(backend, "living", real)
        assert await sweep
        assert (await first.perform(GetSandbox(sandbox=id), ME)).state is State.RUNNING
        assert id in rig.pool.names()


async def test_a_kill_that_was_meant_for_the_one_before_kills_the_next_one_too(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service() as first, rig.service() as second:
        id, snapshot = await two_services_hold_it(rig, first, second)
        begun, go, real = asyncio.Event(), asyncio.Event(), Held.kill

        async def slow(held: Held) -> None:
            monkeypatch.setattr(Held, "kill", real)
            begun.set()
            await go.wait()
            await real(held)

        monkeypatch.setattr(Held, "kill", slow)
        kill = asyncio.ensure_future(second.perform(KillSandbox(sandbox=id), ME))
        await begun.wait()
        await first.perform(RollbackSandbox(sandbox=id, snapshot=snapshot), ME)
        go.set()
        assert (await kill).state is State.KILLED
        assert id not in rig.pool.names()
        assert [place for place in rig.world.places.values() if place.ended is None] == []


@pytest.mark.parametrize("maker_looks", [False, True])
async def test_it_ends_with_the_program_that_made_it_and_not_with_the_one_that_took_it_back(
    rig: Rig, maker_looks: bool
) -> None:
    rig.pool.create("tp_host")
    async with rig.service() as watching:
        async with rig.service() as first:
            id = (await first.perform(CreateSandbox(spec=SandboxSpec()), ME)).id
            async with rig.service() as second:
                snapshot = (await second.perform(CreateSnapshot(sandbox=id), ME)).id
                await second.perform(RollbackSandbox(sandbox=id, snapshot=snapshot), ME)
            assert await said(watching, id) == "here\n"
            if maker_looks:
                assert await said(first, id) == "here\n"
        assert (await watching.perform(GetSandbox(sandbox=id), ME)).state is State.KILLED
    assert id not in rig.pool.names()
    assert [place for place in rig.world.places.values() if place.ended is None] == []


async def test_one_that_cannot_be_ended_keeps_no_other_from_its_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.pool.create("tp_host")
    adopt = WorldBackend.adopt
    ids: list[SandboxId] = []

    async def fails_at_the_first(backend: WorldBackend, id: SandboxId) -> Held | None:
        if id == ids[0]:
            raise KeeperUnavailable("no keeper answers")
        return await adopt(backend, id)

    async with rig.service() as watching, rig.service() as first:
        for _ in range(2):
            ids.append((await first.perform(CreateSandbox(spec=SandboxSpec()), ME)).id)
        async with rig.service() as second:
            for id in ids:
                snapshot = (await second.perform(CreateSnapshot(sandbox=id), ME)).id
                await second.perform(RollbackSandbox(sandbox=id, snapshot=snapshot), ME)
        with monkeypatch.context() as broken:
            broken.setattr(WorldBackend, "adopt", fails_at_the_first)
            with pytest.raises(KeeperUnavailable):
                await first.aclose()
        states = [(await watching.perform(GetSandbox(sandbox=id), ME)).state for id in ids]
        assert states == [State.RUNNING, State.KILLED]
        await watching.perform(KillSandbox(sandbox=ids[0]), ME)


async def test_who_asks_after_a_command_of_the_one_before_disturbs_nobody_in_the_next_one(rig: Rig) -> None:
    async with rig.service() as first, rig.service() as second:
        id, snapshot = await two_services_hold_it(rig, first, second)
        before = second._store.get(id)
        assert before is not None
        await first.perform(RollbackSandbox(sandbox=id, snapshot=snapshot), ME)
        assert await said(second, id) == "here\n"
        row = second._store.get(id)
        assert row is not None
        held = second._rooms.live.get(row)
        assert held is not None
        assert "taken back to a snapshot" in (await second._rooms.live.dead(before)).message
        assert second._rooms.live.get(row) is held
