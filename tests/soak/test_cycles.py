"""Many lives, one after the other: what they leave behind does not add up."""

from __future__ import annotations

from pathlib import Path

import pytest

import paddock
from paddock.supervisor import layout
from tests.conformance.leaks import Snapshot
from tests.conftest import SandboxFactory, supervisors
from tests.orphans import wait_until

MANY = pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])


ONCE = frozenset({"audit.key", "audit/heads", "garbage.lock"})
"""Files that a service makes when it comes to them, some seconds after its beginning."""


_ALIKE = 10
"""Looks that have to agree: a spare has its directory some time before it has its processes."""


def live_once() -> str:
    with paddock.Sandbox.create(ttl_seconds=60) as made:
        assert made.exec("true").ok
        return made.id


def resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1])
    raise AssertionError("no Private_Dirty")


def at_rest(state: Path) -> Snapshot:
    """With all the spares that the supervisor wants, which are none before the first jail, and none of them half
    made."""
    assert wait_until(lambda: len(list((state / "supervisor" / "spares").iterdir())) in (0, layout.DEFAULT_SPARES))
    seen = [Snapshot.take(state)]

    def still() -> bool:
        seen.append(Snapshot.take(state))
        return len(seen) > _ALIKE and len({frozenset(one.processes) for one in seen[-_ALIKE:]}) == 1

    assert wait_until(still)
    return seen[-1]


@pytest.mark.slow
@pytest.mark.parametrize("cycles", [200, MANY])
def test_hundreds_of_cycles_leave_nothing_behind(sandbox: SandboxFactory, shared_state: Path, cycles: int) -> None:
    sandbox().kill()  # skips with the reason where no sandbox can be had
    for _ in range(20):  # what is made once and kept (id maps of a slot, caches) is made
        live_once()
    (supervisor,) = supervisors(shared_state)
    before, memory = at_rest(shared_state), resident_kib(supervisor)
    ids = [live_once() for _ in range(cycles)]
    left: dict[str, int] = {}

    def clean() -> bool:
        # By number: what the supervisor keeps ready for the next one is never the same.
        now = Snapshot.take(shared_state, sandboxes=ids)
        kinds = before.__struct_fields__
        left.update({kind: len(getattr(now, kind)) - len(getattr(before, kind)) for kind in kinds})
        left["files"] = len(now.files - ONCE) - len(before.files - ONCE)
        return all(number <= 0 for number in left.values())

    assert wait_until(clean), f"left behind: {left}, {sorted(Snapshot.take(shared_state).files - before.files)}"
    assert supervisors(shared_state) == [supervisor]
    assert resident_kib(supervisor) - memory < 1024, (
        f"the supervisor has grown by {resident_kib(supervisor) - memory} KiB"
    )
