"""Every test runs against the program that ships, one with sanitizers, and that of the other architecture.

The last runs under `qemu-user`, in `make test-all`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.driver import Connection, Guest, build_module, emulated


@pytest.fixture(scope="session", params=["release", "sanitized", pytest.param("aarch64", marks=pytest.mark.slow)])
def program(request: pytest.FixtureRequest) -> Path:
    if request.param == "aarch64":
        return emulated()
    return build_module().build(sanitize=request.param == "sanitized")


@pytest.fixture
def guest(program: Path, tmp_path: Path) -> Iterator[Guest]:
    with Guest(program, tmp_path / "s") as guest:
        yield guest


@pytest.fixture
def host(guest: Guest) -> Iterator[Connection]:
    connection = guest.connect()
    yield connection
    connection.close()


EMULATOR_DIFFERS = {
    "test_what_the_filter_refuses_is_refused_to_commands": "it refuses PR_SET_SECCOMP, so no agent starts",
    "test_it_runs_from_a_sealed_file_that_nobody_can_write": "the file that runs is its own",
    "test_a_program_has_three_descriptors_and_default_signals": "programs inherit a signal that it has for itself",
    "test_a_thousand_commands_leave_nothing_behind": "what it has translated is memory of the guest's process",
    "test_the_end_of_the_lifeline_ends_all": "it refuses PR_SET_CHILD_SUBREAPER, so orphans are another process's",
    "test_processes_that_fork_all_the_time_do_not_escape": "it refuses PR_SET_CHILD_SUBREAPER: the agent loses orphans",
    "test_descriptors_that_nobody_announced_are_closed": "it keeps some that don't fit the guest's buffer",
}
"""What these look at under `qemu-user` 7.2 is the emulator's. `tests/vmm/test_aarch64.py` looks at it in a machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name, _, parameters = item.name.partition("[")
        if name in EMULATOR_DIFFERS and parameters.startswith("aarch64"):
            item.add_marker(pytest.mark.skip(reason=f"of the emulator: {EMULATOR_DIFFERS[name]}"))
