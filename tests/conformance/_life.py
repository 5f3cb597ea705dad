"""Sandboxes: making, ending, deadlines, what is known of the dead."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from paddock.backends.base import Instance
from paddock.errors import PaddockError, SandboxDiedError
from paddock.model import Limit, ListFiles, UploadTree, WatchFiles

from ._box import Box
from ._host import processes
from ._lab import Bench, Lab, T, eventually, guarantee


def boot_seconds() -> float:
    """The clock of deadlines: no change of the wall clock moves it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LifeConformance(Bench):
    """create, kill, deadline, living, forget."""

    @guarantee()
    async def test_a_new_sandbox_has_its_id_and_is_living(self, lab: Lab) -> None:
        box = await lab.box()
        assert box.instance.id == box.plan.id
        assert (await lab.backend.state()).living[box.plan.id] is None

    @guarantee()
    async def test_the_backend_can_be_asked_whether_it_is_usable_and_what_it_lacks(self, lab: Lab) -> None:
        assert lab.backend.probe() is None
        for check in lab.backend.checks():
            assert check.status in {"ok", "weak", "missing"}
            assert check.status != "missing" or check.fix, f"{check.name} is missing and nothing says what would fix it"

    @guarantee()
    async def test_two_sandboxes_share_no_file(self, lab: Lab) -> None:
        one, two = await lab.box(), await lab.box()
        await one.write("file", b"one")
        assert await two.names() == []

    @guarantee("isolation")
    async def test_two_sandboxes_see_no_process_of_each_other(self, lab: Lab) -> None:
        one, two = await lab.box(), await lab.box()
        await one.start("sh", "-c", f"sleep 600; : {lab.marker}")
        await eventually("the process stands", lambda: one.matching(lab.marker))
        assert await two.matching(lab.marker) == []

    @guarantee("isolation")
    async def test_a_sandbox_has_the_hostname_of_its_plan(self, lab: Lab) -> None:
        box = await lab.box()
        assert (await box.run("cat", "/proc/sys/kernel/hostname")).text == box.plan.hostname

    @guarantee("isolation")
    async def test_a_sandbox_resolves_its_own_name(self, lab: Lab) -> None:
        box = await lab.box()
        assert (await box.run("hostname", "-f")).text == box.plan.hostname
        address = "import socket; print(socket.gethostbyname(socket.gethostname()), socket.gethostbyname('localhost'))"
        assert (await box.python(address)).text == "127.0.0.1 127.0.0.1"

    @guarantee()
    async def test_a_kill_leaves_no_process(self, lab: Lab) -> None:
        box = await busy(lab)
        await box.instance.kill()
        assert processes(lab.marker) == [], "kill() returns when nothing is left"

    @guarantee()
    async def test_a_kill_is_idempotent_also_from_many_tasks_at_once(self, lab: Lab) -> None:
        box = await busy(lab)
        await asyncio.gather(*(box.instance.kill() for _ in range(5)))
        await box.instance.kill()
        assert processes(lab.marker) == []

    @guarantee()
    async def test_a_kill_ends_what_is_waited_for_and_read(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await box.start("sleep", "600")
        assert handle.stdout is not None
        waiting = asyncio.gather(handle.wait(), handle.stdout.read(), return_exceptions=True)
        await box.instance.kill()
        async with asyncio.timeout(60):
            status, out = await waiting
        assert isinstance(status, SandboxDiedError) or (not isinstance(status, BaseException) and status.signal == 9)
        assert out == b"" or isinstance(out, SandboxDiedError)

    @guarantee()
    async def test_everything_asked_of_a_dead_sandbox_says_that_it_died(self, lab: Lab) -> None:
        box = await lab.box()
        await box.instance.kill()
        for attempt in (
            lambda: box.run("true"),
            lambda: box.instance.execs(),
            lambda: box.file(ListFiles, path="."),
            lambda: box.write("file", b"x"),
        ):
            with pytest.raises(SandboxDiedError):
                await attempt()

    @guarantee()
    async def test_an_upload_and_a_watch_end_with_the_sandbox(self, lab: Lab) -> None:
        box = await lab.box()
        watch = await box.file(WatchFiles, path=".")
        writer = await box.file(UploadTree, path="into")
        await box.instance.kill()
        async with asyncio.timeout(60):
            with pytest.raises((SandboxDiedError, BrokenPipeError)):
                for _ in range(100):
                    await writer.write(bytes(65536))
                await writer.aclose()
            with contextlib.suppress(SandboxDiedError):  # saying so is as good as an end
                while await watch.next():
                    pass  # what had happened before
        await watch.aclose()

    @guarantee()
    async def test_who_waits_for_the_end_is_told(self, lab: Lab) -> None:
        box = await lab.box()
        waiting = asyncio.ensure_future(box.instance.wait_ended())
        await box.instance.kill()
        async with asyncio.timeout(60):
            ending = await waiting
            again = await box.instance.wait_ended()
        assert ending.reason
        assert ending.limit is None
        assert again.limit is None

    @guarantee()
    async def test_the_dead_are_told_apart_until_they_are_forgotten(self, lab: Lab) -> None:
        box, other = await lab.box(), await lab.box()
        await box.instance.kill()
        await box.instance.aclose()
        living = (await lab.backend.state()).living
        assert living.get(other.plan.id, "absent") is None
        ending = living.get(box.plan.id, "absent")
        assert ending == "absent" or ending is not None, "a dead sandbox is not among the living"
        await lab.backend.forget(box.plan.id)
        assert box.plan.id not in (await lab.backend.state()).living
        assert other.plan.id in (await lab.backend.state()).living

    @guarantee()
    async def test_a_deadline_ends_the_sandbox_and_is_named_as_the_reason(self, lab: Lab) -> None:
        box = await in_time(lab, lambda ttl: busy(lab, ttl_seconds=ttl))
        async with asyncio.timeout(60):
            ending = await box.instance.wait_ended()
        assert boot_seconds() >= box.plan.deadline
        assert ending.limit == Limit.TTL
        await gone(lab)

    @guarantee()
    async def test_a_deadline_can_be_moved_ahead(self, lab: Lab) -> None:
        box = await busy(lab, ttl_seconds=600.0)
        with contextlib.suppress(SandboxDiedError):  # it may be dead before it answers
            await box.instance.set_deadline(boot_seconds() + 0.5)
        async with asyncio.timeout(60):
            assert (await box.instance.wait_ended()).limit == Limit.TTL
        await gone(lab)

    @guarantee()
    async def test_a_deadline_can_be_moved_back(self, lab: Lab) -> None:
        async def moved(ttl: float) -> Box:
            box = await lab.box(ttl_seconds=ttl)
            await box.instance.set_deadline(boot_seconds() + 600)
            return box

        box = await in_time(lab, moved)
        while boot_seconds() < box.plan.deadline + 1.5:  # init's own copy strikes one second later
            await asyncio.sleep(0.1)
        assert (await box.run("true")).status.code == 0

    @guarantee()
    async def test_a_deadline_that_has_passed_ends_the_sandbox_at_once(self, lab: Lab) -> None:
        box = await busy(lab, ttl_seconds=600.0)
        with contextlib.suppress(SandboxDiedError):  # it may be dead before it answers
            await box.instance.set_deadline(boot_seconds() - 100)
        async with asyncio.timeout(60):
            await box.instance.wait_ended()
        await gone(lab)

    @guarantee()
    async def test_a_create_that_fails_leaves_nothing(self, lab: Lab) -> None:
        plan = await lab.plan()
        broken = msgspec.structs.replace(plan, tree="tr_missing")
        with pytest.raises(PaddockError):
            lab.keep(Box(await lab.backend.create(broken), broken))
            pytest.skip("this backend needs no tree, so nothing fails for want of one")
        assert plan.id not in (await lab.backend.state()).living
        lab.keep(Box(await lab.backend.create(plan), plan))
        assert (await lab.backend.state()).living[plan.id] is None

    @guarantee()
    async def test_a_sandbox_is_not_made_twice(self, lab: Lab) -> None:
        box = await lab.box()
        with pytest.raises(PaddockError):
            await lab.backend.create(box.plan)
        assert (await box.run("true")).status.code == 0

    @guarantee()
    async def test_a_cancelled_create_leaves_nothing(self, lab: Lab) -> None:
        plan = await lab.plan()
        creating: asyncio.Future[Instance] = asyncio.ensure_future(lab.backend.create(plan))
        await asyncio.sleep(0)
        creating.cancel()
        try:
            lab.keep(Box(await creating, plan))
        except asyncio.CancelledError:

            async def absent() -> bool:
                return (await lab.backend.state()).living.get(plan.id, "absent") is not None

            await eventually("a cancelled create is undone", absent)

    @guarantee()
    async def test_forgetting_what_is_unknown_is_harmless(self, lab: Lab) -> None:
        plan = await lab.plan()
        await lab.backend.forget(plan.id)
        assert plan.id not in (await lab.backend.state()).living

    @guarantee()
    async def test_closing_leaves_no_task_behind(self, lab: Lab) -> None:
        before = asyncio.all_tasks()
        backend = lab.second_backend()
        plan = await lab.plan()
        instance = await backend.create(plan)
        assert (await Box(instance, plan).run("true")).status.code == 0
        await instance.kill()
        await instance.aclose()
        await backend.aclose()

        async def none() -> bool:
            return asyncio.all_tasks() <= before

        await eventually("no task of a closed backend is left on the loop", none)


async def busy(lab: Lab, **spec: object) -> Box:
    """A sandbox with a background command and a daemon in a session of its own, both with the marker."""
    box = await lab.box(**spec)
    handle = await box.start(
        "sh",
        "-c",
        f"setsid sh -c 'trap \"\" TERM HUP; sleep 600; : {lab.marker}' & sleep 600; :",
        "sh",
        lab.marker,
        background=True,
    )
    await handle.aclose()

    async def both() -> bool:
        return len(await box.matching(lab.marker)) >= 2

    await eventually("both processes stand", both)
    return box


async def in_time(lab: Lab, make: Callable[[float], Awaitable[T]]) -> T:
    """What `make` makes with a short time to live; with a longer one if its time was up before it was made."""
    ttl = 1.0
    while True:
        try:
            return await make(ttl)
        except (PaddockError, ExceptionGroup):  # a group: of what was read and written at once
            if boot_seconds() < lab.plans[-1].deadline:
                raise
        await gone(lab)
        ttl *= 2


async def gone(lab: Lab, *, seconds: float = 60.0) -> None:
    async def none() -> bool:
        return not processes(lab.marker)

    await eventually("no process with the marker is left on the machine", none, seconds=seconds)
