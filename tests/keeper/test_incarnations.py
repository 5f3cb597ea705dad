"""A sandbox that is made again under its id: what is said of the one before is not believed of it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from paddock.backends import SandboxPlan
from paddock.backends.jail import JailBackend
from tests.keeper.conftest import Yard, run


def again(plan: SandboxPlan) -> SandboxPlan:
    return msgspec.structs.replace(plan, incarnation=plan.incarnation + 1)


async def a_while() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_the_late_news_of_an_end_is_not_the_end_of_the_next_one(play: Any) -> None:
    async def scene(yard: Yard) -> None:
        news: list[tuple[Any, ...]] = []
        tell = yard.backend.keeper._on_ended
        yard.backend.keeper._on_ended = lambda *said: news.append(said)  # it is slow to come
        plan = yard.plan()
        first = await yard.backend.create(plan)
        await first.kill()
        await yard.backend.forget(plan.id)
        second = await yard.backend.create(again(plan))
        await yard.backend.living()  # all that the keeper had said before is there
        assert [said[:2] for said in news] == [(plan.id, 0)]
        tell(*news[0])
        end = asyncio.ensure_future(second.wait_ended())
        await a_while()
        assert not end.done()
        await first.kill()  # it is dead, and nobody else is meant
        assert (await run(second, "echo", "lives"))[1] == b"lives\n"
        await second.kill()
        assert (await end).reason == "it was killed"

    play(scene)


def test_who_adopts_it_believes_nothing_of_the_one_before(play: Any) -> None:
    async def scene(yard: Yard) -> None:
        plan = yard.plan()
        await (await yard.backend.create(plan)).kill()
        await yard.backend.forget(plan.id)
        second = await yard.backend.create(again(plan))
        other = JailBackend(yard.state_dir)
        try:
            finding = asyncio.ensure_future(other.adopt(plan.id))
            await asyncio.sleep(0)  # it has begun to listen
            other._on_ended(plan.id, 0, None, "it was killed")
            found = await finding
            assert found is not None
            end = asyncio.ensure_future(found.wait_ended())
            await a_while()
            assert not end.done()
            await second.kill()
            assert (await end).reason == "it was killed"
        finally:
            await other.aclose()

    play(scene)


def test_what_a_service_had_killed_before_it_died_is_not_recorded_of_the_next_one(play: Any) -> None:
    async def scene(yard: Yard) -> None:
        plan = yard.plan()
        other = JailBackend(yard.state_dir)
        await (await other.create(plan)).kill()
        await other.forget(plan.id)
        await other.create(again(plan))
        other.keeper._lost()  # without a word, as one that is killed
        assert await yard.backend.living() == {plan.id: None}
        assert not list(yard.state_dir.glob("run/*.ended"))
        second = await yard.backend.adopt(plan.id)
        assert second is not None
        await second.kill()
        await other.aclose()

    play(scene)
