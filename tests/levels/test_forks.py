"""Snapshots, forks, rollbacks and sleep as the jail's, at the other levels: the same tests, of `tests/service`."""

from __future__ import annotations

import os
from typing import Any

import pytest

from paddock import Sandbox
from paddock.errors import UnsupportedError
from paddock.model import PtySize
from tests.conftest import SandboxFactory
from tests.levels.conftest import LEVELS, SMALL
from tests.service.test_forks import (
    test_a_child_has_the_files_and_nothing_else,
    test_a_child_of_a_child,
    test_a_childs_ttl_is_its_own,
    test_a_fork_that_fails_leaves_nothing_and_the_parent_unharmed,
    test_a_hundred_children_need_no_more_than_their_parent_wrote,
    test_a_snapshot_outlives_its_sandbox,
    test_all_children_are_of_one_instant_of_a_busy_parent,
    test_rollback_takes_the_files_back_and_ends_the_processes,
    test_the_parent_goes_on,
    test_what_cannot_be_rolled_back_is_left_as_it_is,
    test_what_one_writes_no_other_sees,
    test_what_was_written_to_a_mount_goes_along,
)
from tests.service.test_sleeping import (
    test_a_paused_sandbox_says_so_and_any_use_wakes_it,
    test_a_rollback_of_a_paused_one_runs,
    test_a_timeout_still_holds_after_a_pause,
    test_an_idle_one_sleeps_until_it_is_used,
    test_its_ttl_stands_still_with_it,
    test_many_uses_at_once_wake_it_once,
    test_nothing_wakes_it_when_it_was_killed,
    test_streams_stay_open_and_what_is_written_wakes_it,
    test_what_only_looks_at_it_lets_it_sleep,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(params=LEVELS[1:])
def level(request: pytest.FixtureRequest) -> str:
    of_files = (
        test_a_child_has_the_files_and_nothing_else,
        test_all_children_are_of_one_instant_of_a_busy_parent,  # the children of this one go on writing
        test_rollback_takes_the_files_back_and_ends_the_processes,
    )
    one_id = os.getuid() != 0  # there gVisor copies files only
    if request.param in (("microvm",) if one_id else ("gvisor", "microvm")) and request.function in of_files:
        pytest.skip(f"{request.param}: copied with its memory, a child goes on: tests/levels/test_machine_memory.py")
    return request.param


@pytest.fixture(scope="session")
def refusals() -> dict[str, str | None]:
    """By level: why nothing of it can be copied, or None."""
    return {}


@pytest.fixture
def sandbox(
    request: pytest.FixtureRequest, create: SandboxFactory, level: str, refusals: dict[str, str | None]
) -> SandboxFactory:
    """As that of the jail's tests, with sandboxes of the level, as small as a virtual machine is baked here."""

    def make(**options: Any) -> Sandbox:
        return create(**{"limits": SMALL, **options})

    of_paused = (test_a_rollback_of_a_paused_one_runs, test_what_only_looks_at_it_lets_it_sleep)
    if request.function.__module__.endswith("test_forks") or request.function in of_paused:
        if level not in refusals:
            refusals[level] = _refusal(make())
        if (reason := refusals[level]) is not None:
            pytest.skip(reason)
    if request.function is test_streams_stay_open_and_what_is_written_wakes_it:
        try:
            make().start(["true"], pty=PtySize(rows=24, columns=80)).close()
        except UnsupportedError as error:
            pytest.skip(str(error))
    return make


def _refusal(sandbox: Sandbox) -> str | None:
    try:
        sandbox.delete_snapshot(sandbox.snapshot())
    except UnsupportedError as error:
        return str(error)
    finally:
        sandbox.kill()
    return None
