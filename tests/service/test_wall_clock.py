"""The wall clock jumps, years ahead and years back: what lives, lives as long as it was told, and no longer.

Supervisor and guest do not read it at all (`tests/style/test_clocks.py`); the service gets it injected here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import SimpleNamespace

import pytest
from service_world import ME, Rig
from test_over_guest import make, opened, sh

from paddock.daemon.clock import Clock
from paddock.errors import SandboxDiedError
from paddock.linux import proc
from paddock.model import (
    ExtendSandbox,
    GetSandbox,
    Limit,
    ListSandboxes,
    RunExec,
    StartExec,
    State,
)
from paddock.supervisor._serve import LONGEST_SLEEP_SECONDS, Supervisor

YEARS = 10 * 365 * 86_400.0


class Wall:
    """What a clock on the wall shows, and by how much somebody has turned it."""

    def __init__(self) -> None:
        self.turned = 0.0

    def __call__(self) -> float:
        return time.time() + self.turned


@pytest.mark.parametrize("jump", [YEARS, -YEARS], ids=["forwards", "backwards"])
async def test_what_lives_lives_on_and_can_be_extended(rig: Rig, jump: float) -> None:
    wall = Wall()
    async with opened(rig, clock=Clock(wall=wall)) as service:
        id = await make(service, ttl_seconds=60)
        wall.turned = jump
        await service.recovery.sweep()
        assert (await service.perform(GetSandbox(sandbox=id), ME)).state is State.RUNNING
        assert (await service.perform(RunExec(sandbox=id, spec=sh("echo here")), ME)).stdout == "here\n"
        extended = await service.perform(ExtendSandbox(sandbox=id, ttl_seconds=90), ME)
        assert abs(extended.expires_at - (wall() + 90)) < 60, "for people, by the clock that they see"
        row = service.store.get(id)  # pyright: ignore
        assert row is not None
        assert 0 < row.deadline - proc.boottime() <= 90


@pytest.mark.parametrize("jump", [YEARS, -YEARS], ids=["forwards", "backwards"])
async def test_a_deadline_is_met_and_named_whatever_the_wall_clock_shows(rig: Rig, jump: float) -> None:
    wall = Wall()
    async with opened(rig, clock=Clock(wall=wall)) as service:
        id = await make(service)
        with contextlib.suppress(SandboxDiedError):  # it may be dead before that is answered
            await service.perform(ExtendSandbox(sandbox=id, ttl_seconds=2), ME)
        wall.turned = jump
        with pytest.raises(SandboxDiedError, match="time"):
            await service.perform(RunExec(sandbox=id, spec=sh("sleep 600")), ME)
        (seen,) = await service.perform(ListSandboxes(ended=True), ME)
        assert (seen.state, seen.limit) == (State.KILLED, Limit.TTL)


@pytest.mark.parametrize("jump", [YEARS, -YEARS], ids=["forwards", "backwards"])
async def test_timeouts_of_commands_are_kept(rig: Rig, jump: float) -> None:
    wall = Wall()
    async with opened(rig, clock=Clock(wall=wall)) as service:
        id = await make(service)
        spec = sh("sleep 600", timeout_seconds=1)
        foreground = asyncio.ensure_future(service.perform(RunExec(sandbox=id, spec=spec), ME))
        background = await service.perform(StartExec(sandbox=id, spec=spec, background=True), ME)
        wall.turned = jump
        assert (await foreground).limit is Limit.TIME
        assert (await background.wait()).limit is Limit.TIME
        await background.aclose()


async def test_a_name_is_free_again_after_its_holder_died_whenever_that_seems_to_have_been(rig: Rig) -> None:
    wall = Wall()
    async with opened(rig, clock=Clock(wall=wall)) as service:
        for jump in (0, YEARS, -YEARS):
            wall.turned = jump
            id = await make(service, name="again", ttl_seconds=60)
            await (await service.running.get_or_adopt(service.store.get(id))).instance.kill()  # pyright: ignore
            await service.recovery.sweep()
        assert await make(service, name="again", ttl_seconds=60)


def test_a_supervisor_looks_at_the_clock_soon_after_the_machine_slept() -> None:
    """poll's own clock stands still meanwhile; a machine can't be put to sleep in a test."""
    running = SimpleNamespace(
        next_deadline=lambda: proc.boottime() + 7 * 86_400,
        next_removal=lambda: None,
        pauses=SimpleNamespace(deadlines=lambda: []),
    )
    jails = SimpleNamespace(deadlines=lambda: [])
    supervisor = SimpleNamespace(
        _context=SimpleNamespace(idle_seconds=10.0),
        _idle_since=0.0,
        _connection=object(),
        _running=running,
        _jails=jails,
        _watched=SimpleNamespace(next=lambda: None),
    )
    assert Supervisor._milliseconds(supervisor, Supervisor._due(supervisor)) <= LONGEST_SLEEP_SECONDS * 1000  # pyright: ignore
