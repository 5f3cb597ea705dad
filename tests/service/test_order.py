"""The order of verbs on one sandbox: what runs delays nothing, a kill passes everything, what is undone is gone."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import service_world
from service_world import ME, Rig, until

from paddock.errors import SandboxDied
from paddock.model import (
    CreateSandbox,
    CreateSnapshot,
    ExecSpec,
    ExtendSandbox,
    ForkSandbox,
    GetSandbox,
    KillSandbox,
    ListExecs,
    ListSandboxes,
    PauseSandbox,
    RunExec,
    SandboxSpec,
    StartExec,
    State,
)

HOUR = ExecSpec(argv=("sleep", "3600"))
BESIDE: dict[str, Any] = {
    "pause": lambda sandbox: PauseSandbox(sandbox=sandbox, force=True),
    "snapshot": CreateSnapshot,
    "fork": ForkSandbox,
    "extend": lambda sandbox: ExtendSandbox(sandbox=sandbox, ttl_seconds=60),
    "kill": KillSandbox,
}


@pytest.mark.parametrize("verb", BESIDE)
async def test_a_command_of_an_hour_delays_no(rig: Rig, verb: str) -> None:
    rig.pool.create("tp_host")
    async with rig.service() as service:
        id = (await service.perform(CreateSandbox(), ME)).id
        run = asyncio.ensure_future(service.perform(RunExec(sandbox=id, spec=HOUR), ME))
        handle = await service.perform(StartExec(sandbox=id, spec=HOUR), ME)
        await until(lambda: len(rig.world.places[id].commands) == 2)
        async with asyncio.timeout(60):
            await service.perform(BESIDE[verb](sandbox=id), ME)
        assert verb == "kill" or not run.done()
        await service.perform(KillSandbox(sandbox=id), ME)
        assert (await run).signal == 9
        await handle.aclose()


@pytest.mark.parametrize("verb", ["look", "extend"])
async def test_a_snapshot_that_is_under_way_delays_no(rig: Rig, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig.service() as service:
        id = (await service.perform(CreateSandbox(), ME)).id
        begun, go, loop, copy = asyncio.Event(), threading.Event(), asyncio.get_running_loop(), rig.pool.snapshot

        def slowly(source: str, name: str, **options: Any) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert go.wait(60)
            copy(source, name, **options)

        monkeypatch.setattr(rig.pool, "snapshot", slowly)
        snapshot = asyncio.ensure_future(service.perform(CreateSnapshot(sandbox=id), ME))
        await begun.wait()
        try:
            action: Any = ListSandboxes() if verb == "look" else ExtendSandbox(sandbox=id, ttl_seconds=60)
            await service.perform(action, ME)
            assert not snapshot.done()
        finally:
            go.set()
        await snapshot


def _under_way(rig: Rig) -> asyncio.Event:
    """A create that comes to no end by itself, and whether it has begun."""
    entered = asyncio.Event()

    def wait(_: object) -> object:
        entered.set()
        return asyncio.Event().wait()

    rig.world.before_create = wait
    return entered


async def test_a_kill_during_a_create_undoes_it_and_both_say_so(rig: Rig) -> None:
    async with rig.service() as service:
        entered = _under_way(rig)
        create = asyncio.ensure_future(service.perform(CreateSandbox(spec=SandboxSpec(name="n")), ME))
        await entered.wait()
        killed = await service.perform(KillSandbox(sandbox="n"), ME)
        assert (killed.state, killed.reason) == (State.KILLED, f"killed by {ME.id}")
        with pytest.raises(SandboxDied, match=f"killed by {ME.id}"):
            await create
        assert rig.pool.names() == ()
        rig.world.before_create = None
        await service.perform(CreateSandbox(spec=SandboxSpec(name="n")), ME)


async def test_a_create_whose_caller_leaves_undoes_itself_and_a_pause_that_waited_finds_it_ended(rig: Rig) -> None:
    async with rig.service() as service:
        entered = _under_way(rig)
        create = asyncio.ensure_future(service.perform(CreateSandbox(spec=SandboxSpec(name="n")), ME))
        await entered.wait()
        pause = asyncio.ensure_future(service.perform(PauseSandbox(sandbox="n"), ME))
        await asyncio.sleep(0)
        create.cancel()
        with pytest.raises(asyncio.CancelledError):
            await create
        with pytest.raises(SandboxDied):
            await pause
        (seen,) = await service.perform(ListSandboxes(ended=True), ME)
        assert seen.state is State.FAILED
        assert rig.pool.names() == ()


async def test_who_uses_it_while_it_is_killed_is_told_by_whom(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig.service() as service:
        id = (await service.perform(CreateSandbox(), ME)).id
        begun, go, kill = asyncio.Event(), asyncio.Event(), service_world.Held.kill

        async def slowly(held: service_world.Held) -> None:
            begun.set()
            await go.wait()
            await kill(held)

        monkeypatch.setattr(service_world.Held, "kill", slowly)
        killing = asyncio.ensure_future(service.perform(KillSandbox(sandbox=id), ME))
        await begun.wait()
        uses = [
            asyncio.ensure_future(service.perform(action, ME))
            for action in (RunExec(sandbox=id, spec=HOUR), PauseSandbox(sandbox=id), ListExecs(sandbox=id))
        ]
        await asyncio.sleep(0)
        assert (await service.perform(GetSandbox(sandbox=id), ME)).state is State.RUNNING  # looks wait for nothing
        go.set()
        await killing
        for use in uses:
            with pytest.raises(SandboxDied, match=f"killed by {ME.id}"):
                await use


async def test_a_kill_does_not_wait_for_ever_for_what_hangs(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig.service() as service:
        id = (await service.perform(CreateSandbox(), ME)).id
        service._rooms.sandboxes._lanes._patience = 0.01
        begun, go, loop, copy = asyncio.Event(), threading.Event(), asyncio.get_running_loop(), rig.pool.snapshot

        def hangs(source: str, name: str, **options: Any) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert go.wait(60)
            copy(source, name, **options)

        monkeypatch.setattr(rig.pool, "snapshot", hangs)
        snapshot = asyncio.ensure_future(service.perform(CreateSnapshot(sandbox=id), ME))
        await begun.wait()
        try:
            assert (await service.perform(KillSandbox(sandbox=id), ME)).state is State.KILLED
            assert not snapshot.done()
        finally:
            go.set()
        with pytest.raises((SandboxDied, FileNotFoundError)):  # the folders of this world say so of a tree that is gone
            await snapshot
        await service.expiry.once()
        assert rig.pool.names() == ()
