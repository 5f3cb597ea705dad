"""Who floods one sandbox with requests waits; nobody else does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from paddock.daemon._turns import Turns


def run(play: Callable[[Turns], Coroutine[object, object, None]]) -> None:
    async def begin() -> None:
        await play(Turns())

    asyncio.run(begin())


async def begin(turns: Turns, sandbox: str) -> tuple[asyncio.Task[float], bool]:
    """The request, and whether it has its turn at once."""
    task = asyncio.ensure_future(turns.take(sandbox))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task, task.done()


def test_requests_about_one_sandbox_wait_while_another_is_asked_for() -> None:
    async def play(turns: Turns) -> None:
        other, _ = await begin(turns, "other")
        flood = [await begin(turns, "flooded") for _ in range(3)]
        assert [at_once for _, at_once in flood] == [True, False, False]
        turns.leave("other", other.result())
        assert (await begin(turns, "other"))[1], "who floods another sandbox holds up nobody else"
        first, second, third = (task for task, _ in flood)
        turns.leave("flooded", first.result())
        turns.leave("flooded", await second)
        assert not third.done()
        await third

    run(play)


def test_what_runs_long_keeps_nobody_waiting() -> None:
    async def play(turns: Turns) -> None:
        await begin(turns, "other")
        await begin(turns, "busy")
        second, at_once = await begin(turns, "busy")
        assert not at_once
        await second  # the first is never over

    run(play)


def test_a_sandbox_alone_has_all_turns() -> None:
    async def play(turns: Turns) -> None:
        assert all([(await begin(turns, "only"))[1] for _ in range(8)])

    run(play)


def test_a_cancelled_request_takes_nobodys_turn() -> None:
    async def play(turns: Turns) -> None:
        await begin(turns, "other")
        first, _ = await begin(turns, "flooded")
        second, _ = await begin(turns, "flooded")
        third, _ = await begin(turns, "flooded")
        second.cancel()
        turns.leave("flooded", first.result())
        await asyncio.wait((second, third))
        assert second.cancelled()
        turns.leave("flooded", third.result())
        assert (await begin(turns, "flooded"))[1]

    run(play)
