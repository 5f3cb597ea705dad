"""The service's side of the keeper: what becomes of requests, endings and creates when somebody goes away half-way."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paddock.backends import Ending
from paddock.backends._guest import GuestConnection
from paddock.backends.jail import JailBackend
from paddock.backends.jail._keeper import _error
from paddock.errors import KeeperUnavailable, ResourceExhausted
from paddock.keeper import _wire, layout
from paddock.keeper._errors import MountError, as_jail_error
from paddock.keeper._nursery import problem
from paddock.keeper._records import Records
from paddock.keeper._slots import MOST, NoSlot, Slots
from paddock.keeper._trace import Steps
from tests.keeper.conftest import Yard, run

Play = Callable[[Callable[[Yard], Any]], Any]


@contextmanager
def stopped_keeper(yard: Yard) -> Generator[None]:
    """The keeper hears nothing meanwhile."""
    pid = int(yard.backend.keeper.facts["pid"])
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def pid_of(state_dir: Path, id: str) -> int:
    directory = os.open(state_dir / layout.RUN, os.O_RDONLY | os.O_DIRECTORY)
    try:
        record = Records(directory).read(id)
    finally:
        os.close(directory)
    assert record is not None
    return record.pid


def test_more_requests_than_a_socket_holds_are_all_answered(play: Play) -> None:
    async def scene(yard: Yard) -> None:
        keeper = yard.backend.keeper
        with stopped_keeper(yard):
            asking = [asyncio.ensure_future(keeper.request("usage", id="x" * 100_000)) for _ in range(20)]
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*asking)
        assert [answer["known"] for answer in answers] == [False] * 20

    play(scene)


def test_a_cancelled_create_has_been_undone_when_the_caller_goes_on(play: Play) -> None:
    async def scene(yard: Yard) -> None:
        plan = yard.plan()
        with stopped_keeper(yard):
            creating = asyncio.ensure_future(yard.backend.create(plan))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            creating.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await creating
        assert (await yard.backend.living()).get(plan.id, "gone") is not None

    play(scene)


def test_a_create_that_is_cancelled_at_its_first_connection_leaves_no_sandbox(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(yard: Yard) -> None:
        connecting = asyncio.Event()

        async def connect(path: Path) -> GuestConnection:
            connecting.set()
            return await asyncio.Future()

        monkeypatch.setattr(GuestConnection, "connect", connect)
        creating = asyncio.ensure_future(yard.create())
        await connecting.wait()
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        assert None not in (await yard.backend.living()).values()

    play(scene)


def test_of_a_create_whose_keeper_died_before_it_answered_nothing_lives(
    private_play: Play, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    async def scene(yard: Yard) -> None:
        request = yard.backend.keeper.request

        async def dying(operation: str, **fields: Any) -> Any:
            answer = await request(operation, **fields)
            if operation == "create":
                made.append(pid_of(state_dir, plan.id))
                os.kill(int(yard.backend.keeper.facts["pid"]), signal.SIGKILL)
                raise KeeperUnavailable("the keeper went away before it answered")
            return answer

        monkeypatch.setattr(yard.backend.keeper, "request", dying)
        plan = yard.plan()
        with pytest.raises(KeeperUnavailable, match="before it answered"):
            await yard.backend.create(plan)
        assert plan.id not in (await request("list"))["living"]
        await yard.backend.forget(plan.id)

    private_play(scene)
    assert len(made) == 1


def test_a_sandbox_that_cannot_be_reached_yet_is_made_all_the_same(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(yard: Yard) -> None:
        with monkeypatch.context() as patch:

            async def connect(path: Path) -> GuestConnection:
                raise OSError(errno.EMFILE, "no more")

            patch.setattr(GuestConnection, "connect", connect)
            instance = await yard.create()
        assert (await run(instance, "echo", "here"))[1] == b"here\n"
        await instance.kill()

    play(scene)


def test_an_end_that_comes_before_anybody_waits_for_it_is_not_missed(play: Play, module_state: Path) -> None:
    async def scene(yard: Yard) -> None:
        made = await yard.create()
        other = JailBackend(module_state)
        adopted = await other.adopt(made.id)
        assert adopted is not None
        os.kill(pid_of(module_state, made.id), signal.SIGKILL)
        async with asyncio.timeout(60):
            while (await yard.backend.living())[made.id] is None:
                pass
            await other.living()  # behind this answer nothing is under way
            for instance in (made, adopted):
                assert (await instance.wait_ended()).reason == "its pid 1 ended"
        await other.aclose()
        await yard.backend.forget(made.id)

    play(scene)


@pytest.mark.parametrize("reads", [True, False])
def test_the_end_of_a_kill_is_known_although_the_one_who_asked_for_it_died(
    play: Play, module_state: Path, reads: bool
) -> None:
    async def scene(yard: Yard) -> None:
        made = await yard.create()
        with socket.socket(socket.AF_UNIX) as asker:
            asker.connect(str(module_state / layout.KEEPER_SOCKET))
            _wire.send(asker, {"op": "kill", "n": 1, "id": made.id})
            if reads:
                assert await asyncio.to_thread(asker.recv, 100)
        async with asyncio.timeout(60):
            while made.id not in (known := await yard.backend.living()) or known[made.id] is None:
                pass
        assert known[made.id] == Ending(limit=None, reason="it was killed")
        await yard.backend.forget(made.id)

    play(scene)


def test_a_kill_that_its_asker_has_not_recorded_yet_is_known_to_the_others(play: Play, module_state: Path) -> None:
    async def scene(yard: Yard) -> None:
        made = await yard.create()
        other = JailBackend(module_state)
        adopted = await other.adopt(made.id)
        assert adopted is not None
        await adopted.kill()
        assert (await yard.backend.living())[made.id] == Ending(limit=None, reason="it was killed")
        await other.aclose()
        assert await yard.backend.living() == {}

    play(scene)


def test_a_service_that_leaves_in_order_leaves_no_record_of_what_it_killed(play: Play, module_state: Path) -> None:
    async def scene(yard: Yard) -> None:
        made = await yard.create()
        other = JailBackend(module_state)
        adopted = await other.adopt(made.id)
        assert adopted is not None
        await adopted.kill()
        await other.aclose()
        assert await yard.backend.living() == {}
        assert not list((module_state / layout.RUN).glob(f"{made.id}*"))

    play(scene)


def test_who_connects_after_a_cancelled_attempt_gets_a_whole_connection(play: Play, module_state: Path) -> None:
    async def scene(yard: Yard) -> None:
        other = JailBackend(module_state)
        with stopped_keeper(yard):
            first = asyncio.ensure_future(other.living())
            for _ in range(3):
                await asyncio.sleep(0)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
        assert os.fstat(await other.pool()).st_ino == os.fstat(await yard.backend.pool()).st_ino
        assert await other.living() == {}
        await other.aclose()

    play(scene)


def test_a_create_that_a_dead_keeper_never_heard_is_asked_of_its_successor(private_play: Play) -> None:
    async def scene(yard: Yard) -> None:
        pid = int(yard.backend.keeper.facts["pid"])
        watch = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        select.select([watch], [], [])  # not the loop: it has not seen yet that the connection is gone
        os.close(watch)
        made = await yard.create()
        assert made.id in await yard.backend.living()
        await made.kill()
        await made.aclose()

    private_play(scene)


def test_a_machine_without_a_free_range_of_ids_says_what_to_do() -> None:
    slots = Slots(pool=-1, _next=MOST)
    with pytest.raises(NoSlot) as caught:
        slots.take()
    answer = problem(as_jail_error(caught.value, Steps()))
    error = _error(answer)
    assert isinstance(error, ResourceExhausted)
    assert "paddock ls" in str(error)


def test_a_disk_that_could_not_write_is_said_to_be_full_and_not_a_fault_of_ours() -> None:
    failed = OSError(errno.EIO, os.strerror(errno.EIO), "fsconfig overlay create")
    for error in (as_jail_error(failed, Steps()), MountError("/data cannot be mounted", errno.EIO)):
        told = _error(problem(error))
        assert isinstance(told, ResourceExhausted)
        assert "df -h" in str(told)
