"""What a later service finds of what an earlier one left."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from paddock.errors import SandboxDiedError
from paddock.model import Limit, SandboxId

from ._box import Box
from ._lab import Bench, Lab, eventually, guarantee
from ._life import boot_seconds, busy, gone, in_time


class AdoptionConformance(Bench):
    """A later service finds what an earlier one left."""

    @guarantee("adopt")
    async def test_a_living_sandbox_is_adopted_with_its_files_and_commands(self, lab: Lab) -> None:
        box = await busy(lab)
        await box.write("file", b"kept")
        await box.instance.aclose()
        later = await _adopt(lab, box)
        assert await later.read("file") == b"kept"
        assert [info.argv for info in await later.instance.execs()] != []
        assert (await later.run("echo", "hello")).text == "hello"

    @guarantee("adopt")
    async def test_two_services_hold_one_sandbox(self, lab: Lab) -> None:
        box = await lab.box()
        later = await _adopt(lab, box)
        await box.write("file", b"one")
        assert await later.read("file") == b"one"
        ended = asyncio.ensure_future(box.instance.wait_ended())
        await later.instance.kill()
        async with asyncio.timeout(60):
            await ended
        with pytest.raises(SandboxDiedError):
            await box.run("true")

    @guarantee("adopt", "root_user")
    async def test_a_later_service_lists_what_root_has_running(self, lab: Lab) -> None:
        box = await lab.box()
        command = await box.start("sleep", "600", background=True, user="root")
        later = await _adopt(lab, box)
        assert [one.id for one in await later.instance.execs()] == [command.id]

    @guarantee("adopt")
    async def test_the_living_are_seen_by_a_later_service(self, lab: Lab) -> None:
        box = await lab.box()
        assert (await lab.second_backend().state()).living.get(box.plan.id, "absent") is None

    @guarantee("adopt")
    async def test_the_unknown_and_the_dead_are_not_adopted(self, lab: Lab) -> None:
        plan = await lab.plan()
        assert await lab.backend.adopt(plan.id) is None
        assert await lab.backend.adopt(SandboxId("sb_0000000000000000")) is None
        box = await lab.box()
        await box.instance.kill()
        assert await lab.second_backend().adopt(box.plan.id) is None

    @guarantee("adopt")
    async def test_a_deadline_strikes_without_a_service(self, lab: Lab) -> None:
        box = await in_time(lab, lambda ttl: busy(lab, ttl_seconds=ttl))
        await box.instance.aclose()
        await lab.backend.aclose()
        await gone(lab, seconds=30 + max(0.0, box.plan.deadline - boot_seconds()))
        later = lab.second_backend()

        async def known() -> bool:
            return (await later.state()).living.get(box.plan.id, "absent") is not None

        await eventually("a later service knows that it has ended", known)

    @guarantee("adopt")
    async def test_a_later_service_can_move_the_deadline(self, lab: Lab) -> None:
        box = await busy(lab)
        later = await _adopt(lab, box)
        with contextlib.suppress(SandboxDiedError):  # it may be dead before it answers
            await later.instance.set_deadline(boot_seconds() + 0.3)
        async with asyncio.timeout(60):
            assert (await box.instance.wait_ended()).limit == Limit.TTL


async def _adopt(lab: Lab, box: Box) -> Box:
    instance = await lab.second_backend().adopt(box.plan.id)
    assert instance is not None, "a living sandbox is found by a second object of the backend"
    return lab.keep(Box(instance, box.plan))
