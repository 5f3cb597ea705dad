"""Which level a sandbox has for which none is named."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from service_world import ME, Rig, WorldBackend

from paddock.backends.base import Capabilities
from paddock.daemon.main._older import forget_figures
from paddock.daemon.main.service import Service
from paddock.daemon.upkeep import reports
from paddock.errors import (
    InvalidArgumentError,
    LevelUnavailableError,
    PolicyDeniedError,
    ResourceExhaustedError,
    UnsupportedError,
)
from paddock.model import (
    Check,
    CreateSandbox,
    CreateSnapshot,
    Diagnose,
    Diagnosis,
    ForkSandbox,
    GetSandbox,
    KillSandbox,
    Level,
    Limits,
    ListSandboxes,
    Mount,
    Principal,
    RollbackSandbox,
    SandboxSpec,
)
from paddock.model.config import FILE as CONFIG
from paddock.model.config import Config, read_config
from paddock.policy import Policy, local_policy
from paddock.supervisor.layout import LEVELS
from tests.stand_ins import OneTemplate


class Wall(WorldBackend):
    """One of a level, that may be missing or broken."""

    def __init__(self, rig: Rig, level: Level, **traits: Any) -> None:
        super().__init__(rig.world, level=level)
        self._missing, self._broken = traits.get("missing"), traits.get("broken")
        self._memory = traits.get("memory", False)

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, memory=self._memory)

    def probe(self) -> str | None:
        return self._missing

    def checks(self) -> tuple[Check, ...]:
        return (Check(area=self.level.value, name="sleep", status="ok", detail="a promise of this level"),)

    async def create(self, plan: Any) -> Any:
        if self._broken:
            raise ResourceExhaustedError(self._broken)
        return await super().create(plan)


@asynccontextmanager
async def service(rig: Rig, **gvisor: Any) -> AsyncGenerator[Service]:
    """On a machine that has jails, and gVisor with those traits."""
    walls = [Wall(rig, Level.JAIL), Wall(rig, Level.GVISOR, **gvisor)]
    policy = gvisor.get("policy", local_policy(os.getuid()))
    config = read_config(rig.state_dir)
    made = Service(
        rig.state_dir, backends=walls, pool=lambda: rig.pool, templates=OneTemplate, policy=policy, config=config
    )
    try:
        yield made
    finally:
        await made.aclose()


async def chosen(made: Service, **spec: Any) -> str:
    return (await made.perform(CreateSandbox(spec=SandboxSpec(**spec)), ME)).level


def of(diagnosis: Diagnosis, level: str) -> Any:
    return next(one for one in diagnosis.levels if one.level == level)


async def test_the_default_is_the_jail_whatever_was_measured(rig: Rig) -> None:
    (rig.state_dir / LEVELS).write_text('{"gvisor":{"edition":"one","create_ms":1,"first_exec_ms":1,"measured_at":1}}')
    async with service(rig) as made:
        assert (await chosen(made), await chosen(made, level=Level.GVISOR)) == ("jail", "gvisor")
        diagnosis = await made.perform(Diagnose(), ME)
        assert diagnosis.default_level == "jail"
        assert diagnosis.config == Config().shown()
        assert diagnosis.config.items() >= {"level": "jail", "idle_exit_seconds": "600"}.items()
        assert diagnosis.config_file == str(rig.state_dir / CONFIG)
        assert [one.level for one in diagnosis.levels] == ["gvisor", "jail"]


async def test_the_default_is_what_the_owner_has_set(rig: Rig) -> None:
    (rig.state_dir / CONFIG).write_text('level = "gvisor"\n')
    async with service(rig) as made:
        assert (await chosen(made), await chosen(made, level=Level.JAIL)) == ("gvisor", "jail")
        assert (await made.perform(Diagnose(), ME)).config["level"] == "gvisor"


async def test_a_default_that_is_missing_or_cannot_do_what_is_asked_is_a_refusal(rig: Rig) -> None:
    (rig.state_dir / CONFIG).write_text('level = "gvisor"\n')
    async with service(rig, missing="runsc is gone") as made:
        for level in (None, Level.GVISOR):
            with pytest.raises(LevelUnavailableError, match="runsc is gone"):
                await chosen(made, level=level)
        found = of(await made.perform(Diagnose(), ME), "gvisor")
        assert (found.status, found.detail) == ("missing", "runsc is gone")
    async with service(rig) as made:
        with pytest.raises(UnsupportedError, match="mounts"):
            await chosen(made, mounts=(Mount(source="/"),))
        assert rig.world.creates == 0


async def test_doctor_runs_what_it_calls_available_and_says_what_does_not_run(rig: Rig) -> None:
    async with service(rig, broken="no memory") as made:
        told = await made.perform(Diagnose(), ME)
        assert [(one.level, one.status, one.seconds) for one in told.levels] == [
            ("gvisor", "ok", None),
            ("jail", "ok", None),
        ]
        ran = await made.perform(Diagnose(run=True), ME)
        gvisor, jail = ran.levels
        assert (jail.status, jail.seconds is not None) == ("ok", True)
        assert (gvisor.status, gvisor.detail) == ("missing", "no sandbox of it runs: no memory")
        assert [check.area for check in ran.checks if check.name == "sleep"] == ["jail"], "none of what has not run"
        only = await made.perform(Diagnose(run=True, levels=(Level.JAIL,)), ME)
        assert [one.seconds is None for one in only.levels] == [True, False]
    assert all(place.ended is not None for place in rig.world.places.values())


async def test_doctor_does_not_run_what_is_missing_and_a_command_that_fails_is_no_level(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "PROGRAM", "false")
    async with service(rig, missing="runsc is gone") as made:
        gvisor, jail = (await made.perform(Diagnose(run=True), ME)).levels
        assert (gvisor.status, gvisor.detail, gvisor.seconds) == ("missing", "runsc is gone", None)
        assert (jail.status, jail.detail) == ("missing", "`false` ended with exit code 1")


async def test_only_the_owner_has_sandboxes_made_for_a_report(rig: Rig) -> None:
    everything = Policy({"all": lambda principal, action: (True, "a test")})
    async with service(rig, policy=everything) as made:
        with pytest.raises(PolicyDeniedError):
            await made.perform(Diagnose(run=True), Principal("local:99999"))
    assert rig.world.creates == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("levle = 'jail'", "there is no key 'levle'"),
        ("level = 'jail'\nrunsc = 'bin/runsc'", "runsc = 'bin/runsc' isn't valid"),
        (
            "level = 'jail'\nvault_keyring = true\nvault_key_file = '/k'",
            "name one key in two places",
        ),
        ("level = 3", "level = 3 isn't valid"),
        ("level = ['jail']", "level = ['jail'] isn't valid"),
        ("level = 'process'", "level = 'process' isn't valid"),
        ("level = 'vm'", "level = 'vm' isn't valid"),
        ("level 'jail'", "at line 1"),
        ("level = '\udcff'", "isn't valid TOML"),
        ("paused_retention_days = 0", "paused_retention_days = 0 isn't valid"),
        ("paused_retention_days = inf", "paused_retention_days = inf isn't valid"),
        ("paused_retention_days = '30'", "paused_retention_days = '30' isn't valid"),
    ],
)
def test_a_setting_that_says_nothing_is_refused_with_what_is_accepted(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / CONFIG).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidArgumentError) as refused:
        read_config(tmp_path)
    assert words in refused.value.message
    assert refused.value.message.startswith(str(tmp_path / CONFIG))
    assert refused.value.hint


async def test_the_limits_of_all_sandboxes_together_are_kept(rig: Rig) -> None:
    room = Config(memory_mib=3 * Limits().memory_mib, disk_mib=2 * Limits().disk_mib)
    async with rig.service(config=room) as made:
        keyed = CreateSandbox(idempotency_key="one")
        first, second = await made.perform(keyed, ME), await made.perform(CreateSandbox(), ME)
        with pytest.raises(ResourceExhaustedError, match=f"disk_mib={room.disk_mib} here, and 2 have {room.disk_mib}"):
            await made.perform(CreateSandbox(), ME)
        assert await made.perform(keyed, ME) == await made.perform(GetSandbox(sandbox=first.id), ME)
        await made.perform(KillSandbox(sandbox=first.id), ME)
        with pytest.raises(ResourceExhaustedError, match="disk_mib"):
            await made.perform(ForkSandbox(sandbox=second.id, count=2), ME)
        more = Limits(disk_mib=1, memory_mib=room.memory_mib)
        with pytest.raises(ResourceExhaustedError, match="memory_mib"):
            await made.perform(CreateSandbox(spec=SandboxSpec(limits=more)), ME)
        assert [one.id for one in await made.perform(ListSandboxes(), ME)] == [second.id]


def test_how_long_paused_ones_are_kept_is_read(tmp_path: Path) -> None:
    assert read_config(tmp_path).paused_retention_days == 30
    (tmp_path / CONFIG).write_text("paused_retention_days = 0.5")
    assert read_config(tmp_path).paused_retention_days == 0.5


def test_the_first_start_after_the_upgrade_says_once_that_figures_count_no_more(tmp_path: Path) -> None:
    (tmp_path / LEVELS).write_text("{}")
    told = forget_figures(tmp_path, Config())
    assert told is not None
    assert "is a jail from now on" in told
    assert str(tmp_path / CONFIG) in told
    assert forget_figures(tmp_path, Config()) is None


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
            with pytest.raises(InvalidArgumentError, match="cannot go on at level"):
                await chosen(made, snapshot=of, level=level)
        with pytest.raises(InvalidArgumentError, match="256 MiB of memory"):
            await chosen(made, snapshot=memory, limits=Limits(memory_mib=512, disk_mib=512))
        for sandbox, of in ((machine, files), (jail, memory)):
            with pytest.raises(InvalidArgumentError, match=r"cannot go on at level|MiB of memory"):
                await made.perform(RollbackSandbox(sandbox=sandbox, snapshot=of), ME)
