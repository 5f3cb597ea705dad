"""Which level is taken when none is named: the strongest that was measured here, is quick, and can do what is asked."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from service_world import ME, OneTemplate, Rig, WorldBackend

from paddock.backends._base import Capabilities
from paddock.errors import InvalidArgument, LevelUnavailable, PolicyDenied, ResourceExhausted
from paddock.keeper.layout import LEVELS
from paddock.model import (
    CreateSandbox,
    CreateSnapshot,
    Diagnose,
    Diagnosis,
    Level,
    Limits,
    MeasureLevels,
    Principal,
    RollbackSandbox,
    SandboxSpec,
)
from paddock.policy import Policy, local_policy
from paddock.policy._policy import allow
from paddock.service import Service, _levels

OTHER = Principal("local:99999")


class Time:
    """A clock that goes on when somebody looks at it, and while a slow wall is made: a busy machine is none."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 0.001
        return self.now


@pytest.fixture(autouse=True)
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(_levels, "time", clock)
    return clock


class Wall(WorldBackend):
    """One of a level, of some edition, that may be missing, slow, broken or unable."""

    def __init__(self, rig: Rig, level: Level, **traits: Any) -> None:
        super().__init__(rig.world, level=level)
        self.edition = traits.get("edition", "one")
        self._missing, self._broken = traits.get("missing"), traits.get("broken")
        self._seconds, self._trees = traits.get("seconds", 0.0), traits.get("trees", True)
        self._memory = traits.get("memory", False)

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, trees=self._trees, memory=self._memory)

    def probe(self) -> str | None:
        return self._missing

    async def create(self, plan: Any) -> Any:
        if self._broken:
            raise ResourceExhausted(self._broken)
        _levels.time.now += self._seconds  # pyright: ignore
        return await super().create(plan)


@asynccontextmanager
async def service(rig: Rig, **gvisor: Any) -> AsyncGenerator[Service]:
    """On a machine that has jails, and gVisor with those traits."""
    walls = [Wall(rig, Level.JAIL), Wall(rig, Level.GVISOR, **gvisor)]
    policy = gvisor.get("policy", local_policy(os.getuid()))
    made = Service(rig.state_dir, backends=walls, pool=lambda: rig.pool, templates=OneTemplate(), policy=policy)
    try:
        yield made
    finally:
        await made.aclose()


async def chosen(made: Service, **spec: Any) -> str:
    return (await made.perform(CreateSandbox(spec=SandboxSpec(**spec)), ME)).level


def of(diagnosis: Diagnosis, level: str) -> Any:
    return next(one for one in diagnosis.levels if one.level == level)


async def test_what_was_not_measured_here_is_never_chosen_unasked(rig: Rig) -> None:
    async with service(rig) as made:
        assert (await chosen(made), await chosen(made, level=Level.GVISOR)) == ("jail", "gvisor")
        diagnosis = await made.perform(Diagnose(), ME)
        assert (diagnosis.default_level, of(diagnosis, "gvisor").create_ms) == ("jail", None)
        assert "gvisor is not measured: paddock doctor --levels" in diagnosis.default_because
        assert [one.level for one in diagnosis.levels] == ["gvisor", "jail"]


async def test_what_is_stronger_and_quick_is_chosen_by_this_service_and_the_next(rig: Rig) -> None:
    async with service(rig) as made:
        diagnosis = await made.perform(MeasureLevels(rounds=2), ME)
        assert diagnosis.default_level == "gvisor"
        assert min(of(diagnosis, "gvisor").create_ms, of(diagnosis, "jail").first_exec_ms) > 0
        assert await chosen(made) == "gvisor"
        assert not [place for place in rig.world.places.values() if place.ended is None][1:]  # but the one just chosen
    async with service(rig) as made:
        assert (await chosen(made), await chosen(made, level=Level.JAIL)) == ("gvisor", "jail")


async def test_what_was_measured_with_other_programs_counts_no_more(rig: Rig) -> None:
    async with service(rig) as made:
        await made.perform(MeasureLevels(rounds=1), ME)
    async with service(rig, edition="two") as made:
        assert await chosen(made) == "jail"
        assert of(await made.perform(Diagnose(), ME), "gvisor").create_ms is None


async def test_what_takes_long_is_not_chosen_and_doctor_says_how_long(rig: Rig) -> None:
    async with service(rig, seconds=0.2) as made:
        diagnosis = await made.perform(MeasureLevels(rounds=1), ME)
        assert (diagnosis.default_level, await chosen(made)) == ("jail", "jail")
        assert f"gvisor takes {of(diagnosis, 'gvisor').create_ms:.0f} ms" in diagnosis.default_because


async def test_the_default_can_do_what_is_asked_and_a_named_level_is_that_one_or_a_refusal(rig: Rig) -> None:
    async with service(rig, trees=False) as made:
        await made.perform(MeasureLevels(rounds=1), ME)
        backends = made._backends
        assert (backends.choose(None).level, backends.choose(None, ("trees",)).level) == ("gvisor", "jail")
        assert backends.choose(Level.GVISOR, ("trees",)).level == "gvisor"  # whose lack the door then names
        assert backends.choose(None, ("nested",)).level == "gvisor"  # none has it: the same


async def test_a_level_that_went_away_is_passed_over_and_refused_by_name(rig: Rig) -> None:
    async with service(rig) as made:
        await made.perform(MeasureLevels(rounds=1), ME)
    async with service(rig, missing="runsc is gone") as made:
        assert await chosen(made) == "jail"
        with pytest.raises(LevelUnavailable, match="runsc is gone"):
            await chosen(made, level=Level.GVISOR)
        with pytest.raises(LevelUnavailable, match="runsc is gone"):
            await made.perform(MeasureLevels(levels=(Level.GVISOR,)), ME)
        found = of(await made.perform(Diagnose(), ME), "gvisor")
        assert (found.status, found.detail) == ("missing", "runsc is gone")


async def test_one_that_fails_does_not_keep_the_others_from_being_measured(rig: Rig) -> None:
    async with service(rig, broken="no memory") as made:
        diagnosis = await made.perform(MeasureLevels(rounds=1), ME)
        assert of(diagnosis, "jail").create_ms > 0
        assert (of(diagnosis, "gvisor").status, diagnosis.default_level) == ("weak", "jail")
        assert "could not be measured: no memory" in of(diagnosis, "gvisor").detail


async def test_figures_that_cannot_be_read_count_for_nothing_and_doctor_says_so(rig: Rig) -> None:
    async with service(rig) as made:
        await made.perform(MeasureLevels(rounds=1), ME)
    (rig.state_dir / LEVELS).write_text("{")
    async with service(rig) as made:
        assert await chosen(made) == "jail"
        assert LEVELS in (await made.perform(Diagnose(), ME)).default_because


async def test_only_the_owner_measures_and_some_rounds(rig: Rig) -> None:
    async with service(rig, policy=Policy((allow("all", "a test", lambda principal, action: True),))) as made:
        with pytest.raises(PolicyDenied):
            await made.perform(MeasureLevels(), OTHER)
        for rounds in (0, 101):
            with pytest.raises(InvalidArgument):
                await made.perform(MeasureLevels(rounds=rounds), ME)
    assert rig.world.creates == 0


async def snapshot(made: Service, **spec: Any) -> tuple[str, str]:
    """Of a new sandbox: both ids."""
    source = (await made.perform(CreateSandbox(spec=SandboxSpec(**spec)), ME)).id
    return source, (await made.perform(CreateSnapshot(sandbox=source), ME)).id


async def test_what_is_made_from_a_snapshot_is_of_its_level_unless_another_is_named(rig: Rig) -> None:
    async with service(rig) as made:
        rig.pool.create("tp_host")
        _, files = await snapshot(made, level=Level.GVISOR)
        assert await chosen(made, snapshot=files) == "gvisor"
        assert await chosen(made, snapshot=files, level=Level.JAIL) == "jail"


async def test_a_copy_with_memory_goes_on_at_its_own_level_and_size_or_is_refused(rig: Rig) -> None:
    async with service(rig, memory=True) as made:
        rig.pool.create("tp_host")
        small = Limits(memory_mib=256, disk_mib=512)
        machine, memory = await snapshot(made, level=Level.GVISOR, limits=small)
        jail, files = await snapshot(made)
        again = await made.perform(CreateSandbox(spec=SandboxSpec(snapshot=memory)), ME)
        assert (again.level, again.spec.limits) == ("gvisor", small)
        for level, of in ((Level.JAIL, memory), (Level.GVISOR, files)):
            with pytest.raises(InvalidArgument, match="cannot go on at level"):
                await chosen(made, snapshot=of, level=level)
        with pytest.raises(InvalidArgument, match="256 MiB of memory"):
            await chosen(made, snapshot=memory, limits=Limits(memory_mib=512, disk_mib=512))
        for sandbox, of in ((machine, files), (jail, memory)):
            with pytest.raises(InvalidArgument, match=r"cannot go on at level|MiB of memory"):
                await made.perform(RollbackSandbox(sandbox=sandbox, snapshot=of), ME)
