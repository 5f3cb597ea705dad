"""Whatever is done to sandboxes, in whatever order and at once: what is told is what is so, a use is
answered, and what was killed stays dead."""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from service_world import Rig, until

from paddock.errors import InvalidState, SandboxDied
from paddock.model import (
    CreateSandbox,
    CreateSnapshot,
    ExecSpec,
    GetSandbox,
    KillSandbox,
    ListSandboxes,
    PauseSandbox,
    Principal,
    ResumeSandbox,
    RollbackSandbox,
    RunExec,
    SandboxSpec,
    State,
)
from paddock.service import Service

ME = Principal(f"local:{os.getuid()}")
VERBS = ("pause", "resume", "use", "look", "snapshot", "rollback", "falls asleep", "sleep on disk", "kill")
Step = tuple[str, int]
"""What is done, and how many turns of the loop after the moment's beginning."""
steps = st.tuples(st.sampled_from(VERBS), st.integers(0, 9))
moments = st.lists(st.lists(steps, min_size=1, max_size=4), min_size=1, max_size=8)


class Play:
    """One sandbox, which falls asleep by itself now and then."""

    def __init__(self, rig: Rig, service: Service, id: str, snapshot: str) -> None:
        self.rig, self.service, self.id, self.snapshot = rig, service, id, snapshot
        self.killed = False

    async def moment(self, steps: list[Step]) -> None:
        """All at once."""
        async with asyncio.TaskGroup() as tasks:
            for verb, turns in steps:
                tasks.create_task(self.step(verb, turns))

    async def step(self, verb: str, turns: int = 0) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        if verb == "falls asleep":
            place = self.rig.world.places.get(self.id)  # pyright: ignore[reportArgumentType]
            if place is not None and place.ended is None and not place.awake:
                place.pause()
            return
        if verb == "kill":
            self.killed = True
        action = {
            "pause": PauseSandbox(sandbox=self.id, force=True),
            "sleep on disk": PauseSandbox(sandbox=self.id, to_disk=True, force=True),
            "resume": ResumeSandbox(sandbox=self.id),
            "use": RunExec(sandbox=self.id, spec=ExecSpec(argv=("true",))),
            "look": ListSandboxes(),
            "snapshot": CreateSnapshot(sandbox=self.id),
            "rollback": RollbackSandbox(sandbox=self.id, snapshot=self.snapshot),
            "kill": KillSandbox(sandbox=self.id),
        }[verb]
        # It was killed, or is being taken back; the folders of this world say of a tree that is gone just that.
        with suppress(SandboxDied, InvalidState, OSError):
            async with asyncio.timeout(60):
                await self.service.perform(action, ME)

    async def holds(self) -> None:
        """Nobody does anything at this moment."""
        told = await self.service.perform(GetSandbox(sandbox=self.id), ME)
        place = self.rig.world.places.get(told.id)
        if self.killed:
            assert told.state is State.KILLED
            assert place is None or place.ended is not None
            return
        if place is None:
            row = self.service._store.get(self.id)
            assert row is not None
            assert row.asleep
            assert told.state is State.PAUSED
            return
        assert not place.awake
        assert told.state is (State.RUNNING if place.runs.is_set() else State.PAUSED)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(moments, st.booleans())
def test_what_is_told_is_what_is_so(plan: list[list[Step]], idles: bool) -> None:
    async def play(directory: str) -> None:
        rig = Rig(Path(directory) / "state")
        try:
            async with rig.service(memory=True) as service:
                spec = SandboxSpec(persistent=True, idle_seconds=60 if idles else None)
                made = await service.perform(CreateSandbox(spec=spec), ME)
                snapshot = await service.perform(CreateSnapshot(sandbox=made.id), ME)
                scene = Play(rig, service, made.id, snapshot.id)
                for steps in plan:
                    await scene.moment([step for step in steps if idles or step[0] != "falls asleep"])
                    await scene.holds()
                if not scene.killed:
                    await scene.step("pause")
                    result = await service.perform(RunExec(sandbox=made.id, spec=ExecSpec(argv=("true",))), ME)
                    assert result.exit_code == 0
        finally:
            await rig.aclose()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(play(directory))


TRUE = ExecSpec(argv=("true",))


@pytest.mark.parametrize("idle_seconds", [None, 60])
@pytest.mark.parametrize("verb", ["resume", "use"])
async def test_whoever_wakes_it_while_another_pauses_it_and_whenever_in_that(
    rig: Rig, verb: str, idle_seconds: float | None
) -> None:
    async with rig.service() as service:
        spec = SandboxSpec(persistent=True, idle_seconds=idle_seconds)
        made = await service.perform(CreateSandbox(spec=spec), ME)
        scene = Play(rig, service, made.id, "")
        for turns in range(60):
            await scene.moment([("pause", 30), (verb, turns)])
            await scene.holds()


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
        place.stillness.begin()
        command = RunExec(sandbox=made.id, spec=ExecSpec(argv=("sleep", "0.5"), timeout_seconds=0.1))
        running = others.create_task(service.perform(command, ME))
        await until(lambda: any(c._process.poll() is not None for c in place.commands.values()))
        place.stillness.end()
        result = await running
        assert (result.exit_code, result.limit) == (0, None)
