"""Sleep on disk beside others: whoever dies, fails, kills, uses or looks at any moment finds one sandbox or none."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import service_world
from service_world import ME, Place, Rig, until
from test_disk_sleep import Sleeper
from test_workspace_trees import OneWorkspace

from paddock.daemon.clock import Clock
from paddock.errors import SandboxDiedError, SupervisorUnavailableError
from paddock.model import KillSandbox, State

PATIENCE_SECONDS = 60.0


@pytest.fixture
def over() -> OneWorkspace:
    return OneWorkspace()


@pytest.mark.parametrize("by", ["use", "sweep"])
async def test_what_comes_to_life_while_it_sleeps_ends(rig: Rig, over: OneWorkspace, by: str) -> None:
    """A daemon that died had asked for it, and recovery came before it was there."""
    async with rig.service(workspaces=over, memory=True) as service:
        box = await Sleeper(rig, service).begin()
        assert box.place is not None
        plan = box.place.plan
        await box.sleep()
        stray = rig.world.places[box.id] = Place(plan, rig.state_dir / "world" / box.id)
        stray.root.mkdir(parents=True)
        if by == "sweep":
            await service.recovery.sweep()
            assert await box.state() is State.PAUSED
            assert box.place is None
        assert await box.answers()
        assert stray.ended is not None
        assert await box.woken() == 1


@pytest.mark.parametrize("way", ["to sleep", "back"])
async def test_what_could_not_be_finished_the_next_use_finishes(
    rig: Rig, over: OneWorkspace, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    async with rig.service(workspaces=over, memory=True) as service:
        box = await Sleeper(rig, service).begin()

        async def fail(*_: object) -> None:
            raise SupervisorUnavailableError("it has just died")

        if way == "to sleep":
            monkeypatch.setattr(service_world.Held, "kill", fail)
        else:
            await box.sleep()
            monkeypatch.setattr(service_world.WorldBackend, "forget", fail)
        with pytest.raises(SupervisorUnavailableError):
            await (box.sleep() if way == "to sleep" else box.answers())
        monkeypatch.undo()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await box.answers()


async def test_killed_while_it_wakes_it_does_not_touch_a_workspace_that_another_may_have(
    rig: Rig, over: OneWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service(workspaces=over, memory=True) as service:
        box = await Sleeper(rig, service).begin()
        await box.sleep()
        copied, go = threading.Event(), threading.Event()
        copy = rig.pool.snapshot

        def slowly(source: str, name: str, **options: Any) -> None:
            copy(source, name, **options)
            if name.endswith("_w"):  # the last of them
                copied.set()
                assert go.wait(PATIENCE_SECONDS)

        monkeypatch.setattr(rig.pool, "snapshot", slowly)
        use = asyncio.ensure_future(box.answers())
        assert await asyncio.to_thread(copied.wait, PATIENCE_SECONDS)
        kill = asyncio.ensure_future(service.perform(KillSandbox(sandbox=box.id), ME))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not kill.done(), "it waits for the copy: until then nobody else has the workspace"
        go.set()
        await kill
        with pytest.raises(SandboxDiedError):
            await use
        assert box.file("ws_1").read_text() == "kept"
        await until(lambda: set(rig.pool.names()) == {"tp_host", "bs_1", "ws_1"})


async def test_whose_time_ends_while_it_wakes_is_told_so(rig: Rig, over: OneWorkspace) -> None:
    ahead = [0.0]
    clock = Clock(boottime=lambda: Clock().boottime() + ahead[0])
    async with rig.service(workspaces=over, memory=True, clock=clock) as service:
        box = await Sleeper(rig, service).begin(ttl_seconds=300)
        await box.sleep()

        def too_late(_: object) -> None:
            ahead[0] = 301
            raise SandboxDiedError("its pid 1 has ended")

        rig.world.before_create = too_late
        with pytest.raises(SandboxDiedError, match="its time to live was over"):
            await box.answers()
        await until(lambda: set(rig.pool.names()) == {"tp_host", "bs_1", "ws_1"})
