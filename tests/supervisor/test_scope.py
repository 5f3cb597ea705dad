"""Where systemd gives out control groups, the supervisor has a unit of its own; sandboxes outlive it in there."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddock.backends.jail import _supervisor, _trials
from paddock.storage.commands import attempt
from tests.orphans import wait_until
from tests.supervisor.conftest import Yard, run

Play = Callable[[Callable[[Yard], Any]], Any]


@pytest.fixture
def unit() -> None:
    if _supervisor.scope() is None:
        pytest.skip("no systemd gives out control groups of version 2 to this user here")


def cgroup_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text().strip()


@pytest.mark.usefixtures("unit")
def test_the_supervisor_has_a_unit_of_its_own_and_every_limit_holds(private_play: Play) -> None:
    async def scene(yard: Yard) -> None:
        instance = await yard.create()
        pid = int(yard.backend.supervisor.facts["pid"])
        assert ".scope/" in cgroup_of(pid)
        assert cgroup_of(pid).rpartition("/")[0] != cgroup_of(os.getpid())
        assert set(yard.backend.supervisor.facts["cgroups"]) >= {"memory", "pids", "cpu"}
        assert (await instance.usage()).processes
        await instance.kill()

    private_play(scene)


@pytest.mark.usefixtures("unit")
def test_the_next_supervisor_finds_the_groups_of_the_one_before_in_another_unit(private_play: Play) -> None:
    async def scene(yard: Yard) -> None:
        instance = await yard.create()
        first = int(yard.backend.supervisor.facts["pid"])
        os.kill(first, signal.SIGKILL)
        assert wait_until(lambda: not Path(f"/proc/{first}").exists())
        assert (await yard.backend.state()).living[instance.id] is None, "it is adopted"
        assert yard.backend.supervisor.facts["pid"] != first
        assert (await instance.usage()).processes, "its group is known"
        assert (await run(instance, "echo", "on"))[1] == b"on\n"
        await instance.kill()

    private_play(scene)


def test_the_profile_that_doctor_prints_names_the_program_that_runs_us() -> None:
    profile, command = _trials.profile(), _trials.apparmor_command()
    program = os.path.realpath(sys.executable)
    assert f"profile paddock {program} flags=(unconfined)" in profile
    assert "\n  userns,\n" in profile
    assert all(line in command for line in profile.splitlines())
    assert command.endswith("apparmor_parser -r /etc/apparmor.d/paddock")


def test_whoever_may_make_user_namespaces_is_not_refused() -> None:
    assert attempt(_trials._USERNS) is None
    assert _trials.refused() is None
