"""What stands still until it is resumed, whoever lives meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from paddock.backends.base import Paused
from paddock.errors import SandboxDiedError
from paddock.model import Limit

from ._box import Box
from ._lab import Bench, Lab, eventually, guarantee
from ._life import boot_seconds, in_time

_COUNTING = "while :; do n=$((n+1)); echo $n >n.new; mv n.new n; done"


class PauseConformance(Bench):
    """Paused, a sandbox does nothing, and does not notice."""

    @guarantee("pause")
    async def test_what_is_paused_does_nothing_until_it_is_resumed(self, lab: Lab) -> None:
        box = await lab.box()
        await box.start("sh", "-c", _COUNTING, background=True)
        await _gets_on(box)
        await box.instance.pause()
        await box.instance.pause()
        assert box.instance.pause_clock.now
        assert box.plan.id in (await lab.backend.state()).paused
        asked = asyncio.ensure_future(box.read("n"))
        for _ in range(50):
            await lab.backend.state()
        assert not asked.done()
        await box.instance.resume()
        await box.instance.resume()
        assert not box.instance.pause_clock.now
        assert box.plan.id not in (await lab.backend.state()).paused
        assert int(await asked) > 0
        await _gets_on(box)

    @guarantee("pause")
    async def test_what_is_paused_can_be_looked_at_and_killed(self, lab: Lab) -> None:
        box = await lab.box()
        await box.start("sh", "-c", _COUNTING, background=True)
        await box.instance.pause()
        await box.instance.usage()
        await box.instance.processes()
        await box.instance.kill()
        assert (await lab.backend.state()).living.get(box.plan.id, "absent") is not None
        with pytest.raises(SandboxDiedError):
            await box.instance.pause()
        with pytest.raises(SandboxDiedError):
            await box.instance.resume()

    @guarantee("pause", "adopt")
    async def test_a_later_service_finds_it_paused_and_resumes_it(self, lab: Lab) -> None:
        box = await lab.box()
        await box.instance.pause()
        later = lab.second_backend()
        instance = await later.adopt(box.plan.id)
        assert instance is not None
        found = lab.keep(Box(instance, box.plan))
        assert found.instance.pause_clock.now
        assert box.plan.id in (await later.state()).paused
        await found.instance.resume()
        assert (await found.run("echo", "here")).text == "here"
        await eventually("whoever paused it is told", _told(box))

    @guarantee("pause")
    async def test_its_ttl_stands_still_while_it_is_paused(self, lab: Lab) -> None:
        began = boot_seconds()

        async def paused(ttl: float) -> tuple[Box, Paused]:
            box = await lab.box(ttl_seconds=ttl)
            return box, await box.instance.pause()

        box, found = await in_time(lab, paused)
        left, first = found.left_seconds, box.plan.deadline
        assert left is not None
        assert 0 <= left < first - began
        assert (await lab.second_backend().state()).paused[box.plan.id] == found
        await asyncio.sleep(first + 1.5 - boot_seconds())  # it is time itself that must not count
        before = boot_seconds()
        deadline = await box.instance.resume()
        assert before + left <= deadline <= boot_seconds() + left
        async with asyncio.timeout(60):
            assert (await box.instance.wait_ended()).limit == Limit.TTL
        assert deadline <= boot_seconds()

    @guarantee("pause")
    async def test_what_nobody_resumes_ends_after_its_retention(self, lab: Lab) -> None:
        plan = msgspec.structs.replace(await lab.plan(), retention_seconds=1.0)
        box = lab.keep(Box(await lab.backend.create(plan), plan))
        await box.instance.pause()
        async with asyncio.timeout(60):
            assert (await box.instance.wait_ended()).limit == Limit.RETENTION

    @guarantee("idle")
    async def test_what_nobody_keeps_awake_is_paused_after_its_time(self, lab: Lab) -> None:
        box = await lab.box(idle_seconds=1.0)
        let_go = await box.instance.stay_awake()
        await box.write("file", b"kept")
        let_go()

        async def paused() -> bool:
            return box.plan.id in (await lab.backend.state()).paused

        await eventually("it is paused", paused)
        let_go = await box.instance.stay_awake()
        assert await box.read("file") == b"kept"
        let_go()


async def _gets_on(box: Box) -> None:
    """Returns when the counter was seen to grow."""
    seen: set[str] = set()

    async def grown() -> bool:
        seen.add((await box.sh("cat n || echo none")).text)
        return len(seen - {"none", ""}) > 1

    await eventually("it counts", grown)


def _told(box: Box) -> Callable[[], Awaitable[bool]]:
    async def told() -> bool:
        return not box.instance.pause_clock.now

    return told
