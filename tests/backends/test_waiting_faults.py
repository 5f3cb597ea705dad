"""A claim that a fault or a death breaks off leaves nothing. With a supervisor of its own, which honours faults."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from paddock.backends.vmm._instance import VmmInstance
from paddock.errors import SandboxError
from tests.backends.test_killed_agent import alive
from tests.backends.test_vmm import output
from tests.backends.test_waiting import Room, play, state_of
from tests.backends.vmms import VmmHarness, vmms


@pytest.fixture(scope="module")
def fragile() -> Generator[VmmHarness]:
    with vmms(for_tests=True) as found:
        yield found


@pytest.mark.parametrize("step", ["rename", "written", "rename!", "written!"])
def test_a_claim_that_fails_at_any_step_leaves_nothing_and_the_create_is_served(fragile: VmmHarness, step: str) -> None:
    async def scene(room: Room) -> None:
        id = await room.stock()
        first = state_of(room, id)["pid"]
        room.backend.waiting.count = 0
        room.backend.fault = f"claim:{step}"
        plan = await room.plan(env={"GREETING": "hello"})
        instance = await room.create(plan)
        room.backend.fault = ""
        assert state_of(room, plan.id)["pid"] != first
        assert await output(instance, "sh", "-c", "echo $GREETING") == b"hello\n"
        assert room.waiting() == room.trees() == []
        assert not alive(first)  # though the tests' supervisor may have to reap it yet, if its supervisor died

    play(fragile, scene, for_tests=True)


def test_while_it_is_handed_over_neither_tree_is_taken_for_what_nobody_keeps(
    fragile: VmmHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(room: Room) -> None:
        id = await room.stock()
        room.backend.waiting.count = 0
        pool, asked = await room.backend.trees(), list[str]()

        async def refused(*_: object) -> VmmInstance:
            asked.append(id)
            assert id in pool.in_use
            raise SandboxError("it could not be handed over")

        monkeypatch.setattr(room.backend, "pass_on", refused)
        instance = await room.create()
        assert asked == [id]
        assert await output(instance, "echo", "served") == b"served\n"

    play(fragile, scene, for_tests=True)
