"""What is paused stands still whoever lives, until it is resumed or dies; and it dies on time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from paddock.backends import Instance
from paddock.backends.base import Ending
from paddock.backends.jail import SupervisorClient
from paddock.backends.jail._instance import JailInstance
from paddock.backends.jail.backend import JailBackend
from paddock.errors import SandboxDiedError
from paddock.linux import proc
from paddock.model import ExecId, ExecSpec, IdPrefix, Limit, SandboxId, mint
from tests.supervisor.conftest import Yard, open_yard, run

Scene = Callable[[Callable[[Yard], Awaitable[Any]]], Any]


async def count(instance: Instance) -> None:
    """Starts a program that goes on counting."""
    spec = ExecSpec(argv=("sh", "-c", "while :; do n=$((n+1)); done"))
    await instance.start(spec, id=ExecId(mint(IdPrefix.EXEC)), background=True)


def inside(instance: Instance) -> list[int]:
    assert isinstance(instance, JailInstance)
    return [instance.pid, *proc.descendants(instance.pid)]


def spent(yard: Yard, instance: Instance) -> int:
    """Nanoseconds of processor time that all its processes have had (schedstats of the kernel)."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in inside(instance))


async def runs(yard: Yard, instance: Instance) -> None:
    """Returns when something inside was seen to get on."""
    before = spent(yard, instance)
    async with asyncio.timeout(60):
        while spent(yard, instance) <= before:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.001)


async def stands(yard: Yard, instance: Instance) -> bool:
    """The kernel says so, and nothing inside has had any time while the supervisor had enough of it for many
    answers."""
    async with asyncio.timeout(60):
        # It counts as frozen before it gives its processor away, of which nobody tells.
        while "R" in map(proc.state, inside(instance)):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    before = spent(yard, instance)
    for _ in range(100):
        await yard.backend.state()
    return spent(yard, instance) == before and instance.id in (await yard.backend.state()).paused


async def becomes_idle(instance: Instance) -> None:
    """Returns when the supervisor has told that it paused it."""
    async with asyncio.timeout(60):
        while not instance.pause_clock.now:  # noqa: ASYNC110 (what is awaited is the end of a pause)
            await asyncio.sleep(0.01)


async def another_supervisor(yard: Yard) -> None:
    """The supervisor is killed, and the next one is there."""
    supervisor = os.pidfd_open(yard.backend.supervisor.facts["pid"])
    try:
        signal.pidfd_send_signal(supervisor, signal.SIGKILL)
        await pidfd_ended(supervisor)
    finally:
        os.close(supervisor)
    await yard.backend.state()


async def pidfd_ended(descriptor: int) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)


def test_what_is_paused_does_nothing_until_it_is_resumed(play: Scene) -> None:
    async def scene(yard: Yard) -> None:
        box = await yard.create()
        await count(box)
        await runs(yard, box)
        await box.pause()
        await box.pause()
        assert await stands(yard, box)
        await box.resume()
        await box.resume()
        assert (await yard.backend.state()).paused == {}
        await runs(yard, box)
        assert (await run(box, "echo", "here"))[1] == b"here\n"
        await box.kill()

    play(scene)


def test_it_stands_still_whatever_becomes_of_the_daemon_and_the_supervisor(private_play: Scene) -> None:
    async def scene(yard: Yard) -> None:
        box = await yard.create()
        await count(box)
        await box.pause()
        yard.backend.supervisor.close()
        async with open_yard(yard.state_dir) as later:
            found = await later.backend.adopt(box.id)
            assert found is not None
            assert await stands(later, found)
            await found.aclose()
        await another_supervisor(yard)
        assert await stands(yard, box)
        await box.resume()
        await runs(yard, box)
        await another_supervisor(yard)
        await runs(yard, box)
        await box.kill()

    private_play(scene)


async def passes(deadline: float) -> None:
    """Returns when that time, of CLOCK_BOOTTIME, is over, and pid 1's patience with it."""
    await asyncio.sleep(max(0.0, deadline + 1.5 - proc.boottime()))


async def stand_still(yard: Yard, **idle: float) -> tuple[Instance, float]:
    """One that was paused with little left of its TTL, or fell asleep so; with more, where that was over before. When
    it would have ended."""
    ttl = 1.0
    while True:
        box = await yard.create(**idle)
        first = proc.boottime() + ttl
        with contextlib.suppress(SandboxDiedError):
            await box.set_deadline(first)
            if not idle:
                await box.pause()
        while (ending := (await yard.backend.state()).living[box.id]) is None:
            if found := (await yard.backend.state()).paused.get(box.id):
                assert found.left_seconds is not None
                assert 0 <= found.left_seconds <= ttl
                return box, first
        assert ending.limit is Limit.TTL
        assert first <= proc.boottime()
        ttl *= 2


def test_its_ttl_stands_still_and_goes_on_with_what_was_left(private_play: Scene) -> None:
    async def scene(yard: Yard) -> None:
        (one, _), (other, last) = await stand_still(yard), await stand_still(yard, idle_seconds=0.2)
        boxes = one, other
        paused = (await yard.backend.state()).paused
        await another_supervisor(yard)
        await passes(last)
        found = (await yard.backend.state()).paused
        assert found.keys() == {box.id for box in boxes}
        assert found == paused
        deadlines: list[float] = []
        for box in boxes:
            left = found[box.id].left_seconds
            assert left is not None
            before = proc.boottime()
            await box.stay_awake()
            deadlines.append(await box.resume())
            assert before + left <= deadlines[-1] <= proc.boottime() + left
        await another_supervisor(yard)
        for box, deadline in zip(boxes, deadlines, strict=True):
            assert (await box.wait_ended()).limit is Limit.TTL
            assert deadline <= proc.boottime()

    private_play(scene)


def test_pid_1_holds_the_new_deadline_too(private_play: Scene) -> None:
    """With no supervisor there it ends at that, and not at the one before."""

    async def scene(yard: Yard) -> None:
        box, first = await stand_still(yard)
        assert isinstance(box, JailInstance)
        await passes(first)
        pid = os.pidfd_open(box.pid)
        supervisor = os.pidfd_open(yard.backend.supervisor.facts["pid"])
        deadline = await box.resume()
        yard.backend.supervisor.close()
        signal.pidfd_send_signal(supervisor, signal.SIGKILL)
        await pidfd_ended(supervisor)
        await pidfd_ended(pid)
        assert deadline <= proc.boottime()
        os.close(pid)
        os.close(supervisor)
        assert (await yard.backend.state()).living[box.id] == Ending(
            limit=Limit.TTL, reason="its time to live was over"
        )

    private_play(scene)


def test_it_dies_when_it_is_killed_and_when_it_was_kept_for_long_enough(play: Scene) -> None:
    async def scene(yard: Yard) -> None:
        killed, kept = await yard.create(), await yard.create(retention_seconds=0.5)
        for box in (killed, kept):
            await count(box)
            await box.pause()
        await killed.kill()
        assert (await kept.wait_ended()).limit is Limit.RETENTION
        for box in (killed, kept):
            with pytest.raises(SandboxDiedError):
                await box.pause()
            with pytest.raises(SandboxDiedError):
                await box.resume()

    play(scene)


def test_its_files_can_be_copied_and_it_still_stands(play: Scene) -> None:
    async def scene(yard: Yard) -> None:
        box = await yard.create()
        await count(box)
        await box.pause()
        async with box.frozen():
            assert await stands(yard, box)
        assert await stands(yard, box)
        async with box.frozen():
            await box.resume()
        await runs(yard, box)
        async with box.frozen():
            await box.pause()
        assert await stands(yard, box)
        await box.kill()

    play(scene)


def test_what_nobody_keeps_awake_is_paused_when_it_has_been_idle(private_play: Scene) -> None:
    async def scene(yard: Yard) -> None:
        box = await yard.create(idle_seconds=0.2)
        first, second = await box.stay_awake(), await box.stay_awake()
        await count(box)
        await runs(yard, box)
        first()
        assert (await yard.backend.state()).paused == {}
        second()
        await becomes_idle(box)
        assert await stands(yard, box)
        again = await box.stay_awake()
        await runs(yard, box)
        await another_supervisor(yard)  # it is kept awake under the next one as well
        await runs(yard, box)
        again()
        await becomes_idle(box)
        await box.kill()

    private_play(scene)


def test_a_daemon_that_is_gone_keeps_nothing_awake(play: Scene) -> None:
    async def scene(yard: Yard) -> None:
        box = await yard.create(idle_seconds=0.2)
        yard.backend.supervisor.close()
        async with open_yard(yard.state_dir) as other:
            found = await other.backend.adopt(box.id)
            assert found is not None
            await found.stay_awake()
        await yard.backend.state()  # by this it hears of what comes
        await becomes_idle(box)
        await box.kill()

    play(scene)


def test_what_is_let_go_while_a_new_supervisor_is_told_is_not_held_there() -> None:
    async def main() -> None:
        asked: list[tuple[str, object]] = []
        let_go: list[Callable[[], None]] = []

        async def ask(operation: str, **fields: object) -> dict[str, object]:
            asked.append((operation, fields["hold"]))
            if len(asked) == 3:  # the new supervisor is told of the first: the second is let go before it comes to that
                let_go[1]()
                await asyncio.sleep(0)  # its task sends that in its first step
            return {}

        supervisor = SupervisorClient(Path("/none"))
        supervisor.request = supervisor.tell = ask
        backend = JailBackend(Path("/none"), supervisor=supervisor)
        let_go += [await backend.stay_awake(SandboxId("sb_1"), 0), await backend.stay_awake(SandboxId("sb_2"), 0)]
        await backend.hold_again()
        assert asked == [("awake", 1), ("awake", 2), ("awake", 1), ("rest", 2)]

    asyncio.run(main())
