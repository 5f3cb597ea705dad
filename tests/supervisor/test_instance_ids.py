"""A sandbox that is made again under its id: what is said of the one before is not believed of it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from paddock.backends import SandboxPlan
from tests.supervisor.conftest import Yard, run


def again(plan: SandboxPlan) -> SandboxPlan:
    return msgspec.structs.replace(plan, instance_id=plan.instance_id + 1)


async def a_while() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_the_late_news_of_an_end_is_not_the_end_of_the_next_one(play: Any) -> None:
    async def scene(yard: Yard) -> None:
        news: list[dict[str, Any]] = []
        yard.backend.supervisor.join(news.append)
        plan = yard.plan()
        first = await yard.backend.create(plan)
        await first.kill()
        await yard.backend.forget(plan.id)
        second = await yard.backend.create(again(plan))
        await yard.backend.state()  # all that the supervisor had said before is there
        assert [(said["id"], said["instance_id"]) for said in news] == [(plan.id, 0)]
        end = asyncio.ensure_future(second.wait_ended())
        yard.backend._heard(news[0])  # it was slow to come
        await a_while()
        assert not end.done()
        await first.kill()  # it is dead, and nobody else is meant
        assert (await run(second, "echo", "lives"))[1] == b"lives\n"
        await second.kill()
        assert (await end).reason == "it was killed"
        yard.backend.supervisor.leave(news.append)

    play(scene)
