"""A lane excludes, keeps the order, loses no wake-up, and lets a kill pass, whatever is cancelled and when."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.daemon.lanes import Hold, KilledMeanwhile, Lanes

MODES = ("shared", "exclusive", "wake", "overtake")
Step = tuple[str, int, int, int | None]
"""Mode; the turns of the loop before it comes, in which it holds, and after which it is cancelled."""
steps = st.tuples(st.sampled_from(MODES), st.integers(0, 6), st.integers(0, 4), st.none() | st.integers(0, 12))


class Play:
    """Tasks on one lane. Each notes when it came, entered and left."""

    def __init__(self) -> None:
        self.lanes = Lanes()
        self.inside: dict[int, str] = {}
        self.came: list[int] = []
        self.entered: list[int] = []
        self.left: set[int] = set()
        self.overtaken: set[int] = set()

    async def one(self, number: int, step: Step) -> None:
        mode, before, turns, _ = step
        await _turns(before)
        self.came.append(number)
        with suppress(KilledMeanwhile):
            try:
                async with self._hold(mode) as hold:
                    if mode == "wake":
                        self._enter(number, "shared")
                        await self._stay(number, 1)
                        await hold.exclude()
                        self._enter(number, "exclusive")
                        await self._stay(number, turns)
                        hold.share()
                        mode = "shared"
                    self._enter(number, mode)
                    await self._stay(number, turns)
            except KilledMeanwhile:
                self.overtaken.add(number)
                raise
            finally:
                self.left.add(number)

    def _hold(self, mode: str) -> Hold:
        match mode:
            case "exclusive":
                return self.lanes.exclusive("x")
            case "overtake":
                return self.lanes.overtake("x")
            case _:
                return self.lanes.shared("x")

    def _enter(self, number: int, mode: str) -> None:
        others = {mode for other, mode in self.inside.items() if other != number}
        allowed = {"shared": {"shared", "overtake"}, "exclusive": set[str](), "overtake": {"shared"}}
        assert others <= allowed[mode]  # who shared before a kill came may run beside it
        self.inside[number] = mode
        self.entered.append(number)

    async def _stay(self, number: int, turns: int) -> None:
        try:
            await _turns(turns)
        finally:
            self.inside.pop(number, None)


async def _turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


@given(st.lists(steps, min_size=1, max_size=10))
def test_it_excludes_keeps_the_order_and_loses_no_wake_up(plan: list[Step]) -> None:
    async def play() -> None:
        scene = Play()
        tasks = [asyncio.ensure_future(scene.one(number, step)) for number, step in enumerate(plan)]
        for turn in range(13):
            for task, (*_, cancelled) in zip(tasks, plan, strict=True):
                if cancelled == turn:
                    task.cancel()
            await asyncio.sleep(0)
        async with asyncio.timeout(30):  # a lost wake-up would never end
            done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(error is None or isinstance(error, asyncio.CancelledError) for error in done), done
        assert len(scene.lanes._lanes) == 0, "an unused lane is forgotten"
        _is_fair(scene, plan)
        kills = any(mode == "overtake" for mode, *_ in plan)
        assert kills or not scene.overtaken

    asyncio.run(play())


def _is_fair(scene: Play, plan: list[Step]) -> None:
    """Of two where at least one excludes, the one that came first enters first. (A kill passes; who wakes queues
    anew.)"""
    plain = [number for number in scene.came if plan[number][0] in ("shared", "exclusive") and number in scene.entered]
    for at, first in enumerate(plain):
        for second in plain[at + 1 :]:
            if "exclusive" in (plan[first][0], plan[second][0]):
                assert scene.entered.index(first) < scene.entered.index(second)


async def test_a_kill_cancels_who_holds_it_waits_for_his_undo_and_passes_the_queue() -> None:
    lanes, said = Lanes(), list[str]()

    async def verb() -> None:
        async with lanes.exclusive("x") as hold:
            try:
                await asyncio.Event().wait()
            finally:
                assert hold.overtaken
                await asyncio.sleep(0.01)
                said.append("undone")

    async def queued() -> None:
        async with lanes.shared("x"):
            said.append("queued")

    async def kill() -> None:
        async with lanes.overtake("x"):
            said.append("killed")

    holder, waits = asyncio.ensure_future(verb()), asyncio.ensure_future(queued())
    await _turns(2)
    await kill()
    await waits
    with pytest.raises(KilledMeanwhile):
        await holder
    assert said == ["undone", "killed", "queued"]


async def test_a_kill_does_not_wait_for_those_who_share() -> None:
    lanes, go = Lanes(), asyncio.Event()

    async def share() -> None:
        async with lanes.shared("x"):
            await go.wait()

    sharing = asyncio.ensure_future(share())
    await _turns(2)
    async with lanes.overtake("x"):
        later = asyncio.ensure_future(share())
        await _turns(3)
        go.set()
        await sharing
        await _turns(3)
        assert not later.done()
    await later


async def test_the_callers_own_cancellation_stays_one() -> None:
    lanes = Lanes()

    async def verb() -> None:
        async with lanes.exclusive("x"):
            await asyncio.Event().wait()

    holder = asyncio.ensure_future(verb())
    await _turns(2)
    holder.cancel()
    async with lanes.overtake("x"):
        pass
    with pytest.raises(asyncio.CancelledError):
        await holder


async def test_one_lane_holds_up_no_other() -> None:
    lanes = Lanes()
    async with lanes.exclusive("x"), lanes.exclusive("y"):
        assert len(lanes._lanes) == 2
    assert len(lanes._lanes) == 0
