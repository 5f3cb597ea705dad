"""Attacks on the jail that any wall has to withstand, at the other levels. All of them are in `tests/security`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "security"))

from paddock import Sandbox
from paddock.errors import SandboxDiedError
from tests.levels.conftest import LEVELS
from tests.security.attacking import Attacker
from tests.security.test_attack_files import (
    canary,
    test_a_file_of_the_host_is_not_found_by_any_road,
    test_a_working_directory_does_not_lead_out,
    test_file_actions_after_the_directories_were_replaced_stay_inside,
    test_links_planted_for_the_host_lead_it_nowhere,
    test_the_machines_password_hashes_are_not_read,
)
from tests.security.test_attack_network import (
    test_a_server_of_the_host_is_not_reached,
    test_names_are_not_resolved,
    test_no_address_is_reached_by_tcp_or_udp,
    test_the_loopback_works,
)
from tests.security.test_attack_processes import test_a_signal_to_everybody_reaches_nobody_outside
from tests.security.test_attack_resources import (
    test_a_flood_of_output_is_ended_named_and_not_stored,
    test_a_fork_bomb_ends_with_its_sandbox,
    test_a_full_disk_is_refused_named_and_costs_the_host_no_more,
    test_ten_thousand_hostile_names_are_listed_without_harm,
    test_too_many_files_end_or_are_refused_and_are_named,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(params=LEVELS[1:])
def level(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_hog_of_memory_is_ended_alone_or_with_its_sandbox_and_it_is_named(
    limited: Callable[..., Attacker], bystander: Sandbox
) -> None:
    """A wall that is a program dies of what its inside takes."""
    attacker = limited(memory_mib=256)
    try:
        limit = attacker.run("x = bytearray(b'x') * (900 << 20)").limit
    except SandboxDiedError:
        limit = attacker.sandbox.refresh().limit
    assert limit == "memory"
    assert bystander.exec("echo alive").stdout == "alive\n"
