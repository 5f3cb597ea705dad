"""What is told of a sandbox that is paused meanwhile is what is so."""

from __future__ import annotations

import asyncio
import os

import pytest
from service_world import Rig, until

from paddock.model import (
    CreateSandbox,
    ExecSpec,
    GetSandbox,
    ListSandboxes,
    PauseSandbox,
    Principal,
    RunExec,
    SandboxSpec,
    State,
)

ME = Principal(f"local:{os.getuid()}")
TRUE = ExecSpec(argv=("true",))


async def test_who_looks_just_before_it_stands_still_waits_for_nothing(rig: Rig) -> None:
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(spec=SandboxSpec(persistent=True)), ME)
        place, told = rig.world.places[made.id], list[State]()

        async def look() -> None:
            told.extend(box.state for box in await service.perform(ListSandboxes(), ME))

        place.before_pause = look
        assert (await service.perform(PauseSandbox(sandbox=made.id), ME)).state is State.PAUSED
        assert told == [State.RUNNING]
        assert not place.runs.is_set()


async def test_a_look_whose_answer_comes_late_does_not_pause_what_was_woken_since(rig: Rig) -> None:
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(spec=SandboxSpec(persistent=True)), ME)

        async def use() -> None:
            rig.world.after_look = None
            await service.perform(RunExec(sandbox=made.id, spec=TRUE), ME)

        rig.world.places[made.id].pause()  # as for idleness: nobody has recorded it
        rig.world.after_look = use
        assert [box.state for box in await service.perform(ListSandboxes(), ME)] == [State.RUNNING]


async def test_what_cannot_be_paused_runs_on_and_is_told_to(rig: Rig) -> None:
    async with rig.service() as one:
        made = await one.perform(CreateSandbox(spec=SandboxSpec(persistent=True)), ME)
        place = rig.world.places[made.id]

        async def refuse() -> None:
            raise TimeoutError("it did not stop")

        place.before_pause = refuse
        with pytest.raises(TimeoutError):
            await one.perform(PauseSandbox(sandbox=made.id), ME)
        assert (await one.perform(GetSandbox(sandbox=made.id), ME)).state is State.RUNNING
        assert (await one.perform(RunExec(sandbox=made.id, spec=TRUE), ME)).exit_code == 0
        assert place.resumptions == 0


async def test_the_time_of_a_command_is_not_over_while_it_stands_still(rig: Rig) -> None:
    async with rig.service() as service, asyncio.TaskGroup() as others:
        made = await service.perform(CreateSandbox(spec=SandboxSpec(persistent=True)), ME)
        place = rig.world.places[made.id]
        place.pause_clock.begin()
        command = RunExec(sandbox=made.id, spec=ExecSpec(argv=("sleep", "0.5"), timeout_seconds=0.1))
        running = others.create_task(service.perform(command, ME))
        await until(lambda: any(c._process.poll() is not None for c in place.commands.values()))
        place.pause_clock.end()
        result = await running
        assert (result.exit_code, result.limit) == (0, None)
