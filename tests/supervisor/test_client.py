"""The daemon's side of the supervisor: what becomes of requests, endings and creates when somebody goes away
half-way."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paddock.backends import Ending
from paddock.backends.guest.connection import GuestConnection
from paddock.backends.jail import JailBackend, SupervisorClient
from paddock.backends.jail._supervisor import _error
from paddock.errors import ResourceExhaustedError, SandboxDiedError, SandboxError, SupervisorUnavailableError
from paddock.linux.proc import start_time
from paddock.linux.syscall import failure
from paddock.storage import prepare
from paddock.supervisor import layout
from paddock.supervisor._errors import MountError, Steps, as_jail_error
from paddock.supervisor._jail_pool import problem
from paddock.supervisor._slots import NoSlot, Slots
from paddock.supervisor.bootstrap import VERSION
from paddock.supervisor.records import Records
from paddock.wire import duplex
from tests import pools
from tests.supervisor.conftest import Yard, configure, run

Play = Callable[[Callable[[Yard], Any]], Any]


@contextmanager
def stopped_supervisor(yard: Yard) -> Generator[None]:
    """The supervisor hears nothing meanwhile."""
    pid = int(yard.backend.supervisor.facts["pid"])
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
        supervisor = yard.backend.supervisor
        with stopped_supervisor(yard):
            asking = [asyncio.ensure_future(supervisor.request("usage", id="x" * 100_000)) for _ in range(20)]
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(answer) for answer in answers] == [SandboxDiedError] * 20

    play(scene)


def test_a_cancelled_create_has_been_undone_when_the_caller_goes_on(play: Play) -> None:
    async def scene(yard: Yard) -> None:
        plan = yard.plan()
        with stopped_supervisor(yard):
            creating = asyncio.ensure_future(yard.backend.create(plan))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            creating.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await creating
        assert (await yard.backend.state()).living.get(plan.id, "gone") is not None

    play(scene)


def test_a_create_that_is_cancelled_at_its_first_connection_leaves_no_sandbox(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(yard: Yard) -> None:
        connecting = asyncio.Event()

        async def connect(path: Path, *dialect: Any) -> GuestConnection:
            connecting.set()
            return await asyncio.Future()

        monkeypatch.setattr(GuestConnection, "connect", connect)
        creating = asyncio.ensure_future(yard.create())
        await connecting.wait()
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        assert None not in (await yard.backend.state()).living.values()

    play(scene)


def test_of_a_create_whose_supervisor_died_before_it_answered_nothing_lives(
    private_play: Play, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    async def scene(yard: Yard) -> None:
        request = yard.backend.supervisor.request

        async def dying(operation: str, **fields: Any) -> Any:
            answer = await request(operation, **fields)
            if operation == "create":
                made.append(pid_of(state_dir, plan.id))
                os.kill(int(yard.backend.supervisor.facts["pid"]), signal.SIGKILL)
                raise SupervisorUnavailableError("the supervisor went away before it answered")
            return answer

        monkeypatch.setattr(yard.backend.supervisor, "request", dying)
        plan = yard.plan()
        with pytest.raises(SupervisorUnavailableError, match="before it answered"):
            await yard.backend.create(plan)
        assert plan.id not in (await request("list"))["living"]
        await yard.backend.forget(plan.id)

    private_play(scene)
    assert len(made) == 1


def test_a_sandbox_that_cannot_be_reached_yet_is_made_all_the_same(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(yard: Yard) -> None:
        with monkeypatch.context() as patch:

            async def connect(path: Path, *dialect: Any) -> GuestConnection:
                raise OSError(errno.EMFILE, "no more")

            patch.setattr(GuestConnection, "connect", connect)
            instance = await yard.create()
        assert (await run(instance, "echo", "here"))[1] == b"here\n"
        await instance.kill()

    play(scene)


def test_an_end_that_comes_before_anybody_waits_for_it_is_not_missed(play: Play, module_state: Path) -> None:
    async def scene(yard: Yard) -> None:
        made = await yard.create()
        os.kill(pid_of(module_state, made.id), signal.SIGKILL)
        async with asyncio.timeout(60):
            while (await yard.backend.state()).living[made.id] is None:
                pass
            assert (await made.wait_ended()).reason == "its pid 1 ended"

    play(scene)


@pytest.mark.parametrize("reads", [True, False])
def test_an_end_is_kept_until_a_daemon_says_forget_whichever_has_asked_for_it(
    play: Play, module_state: Path, reads: bool
) -> None:
    async def scene(yard: Yard) -> None:
        made = await yard.create()
        yard.backend.supervisor.close()
        first = SupervisorClient(module_state)
        await (first.request if reads else first.tell)("kill", id=made.id)
        first.close()  # as one that is killed
        async with asyncio.timeout(60):
            while (known := (await yard.backend.state()).living).get(made.id) is None:
                pass
        assert known[made.id] == Ending(limit=None, reason="it was killed")
        await yard.backend.forget(made.id)
        assert (await yard.backend.state()).living == {}
        assert not list((module_state / layout.RUN).glob(f"{made.id}*"))

    play(scene)


def test_the_next_daemon_is_answered_when_the_connection_of_the_one_before_has_ended(play: Play) -> None:
    async def scene(yard: Yard) -> None:
        made = await yard.create()
        later = JailBackend(yard.state_dir)
        finding = asyncio.ensure_future(later.adopt(made.id))
        for _ in range(10):
            await yard.backend.state()
        assert not finding.done()
        yard.backend.supervisor.close()
        async with asyncio.timeout(60):
            found = await finding
        assert found is not None
        assert (await run(found, "echo", "here"))[1] == b"here\n"
        await found.kill()
        await later.aclose()

    play(scene)


def test_what_a_daemon_that_is_gone_held_still_goes_on(play: Play) -> None:
    async def scene(yard: Yard) -> None:
        box = await yard.create()
        await yard.backend.supervisor.request("freeze", id=box.id, hold=1)
        yard.backend.supervisor.close()
        await yard.backend.state()
        assert (await run(box, "echo", "goes on"))[1] == b"goes on\n"
        await yard.backend.supervisor.request("freeze", id=box.id, hold=1)
        await box.kill()  # nor does it keep from being killed
        assert (await yard.backend.state()).living[box.id] is not None

    play(scene)


def test_whoever_connects_after_a_cancelled_attempt_gets_a_whole_connection(play: Play) -> None:
    async def scene(yard: Yard) -> None:
        yard.backend.supervisor.close()
        other = JailBackend(yard.state_dir)
        with stopped_supervisor(yard):
            first = asyncio.ensure_future(other.state())
            for _ in range(3):
                await asyncio.sleep(0)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
        found = os.fstat(await pools.descriptor(other)).st_ino
        assert (await other.state()).living == {}
        await other.aclose()
        assert os.fstat(await pools.descriptor(yard.backend)).st_ino == found

    play(scene)


def test_one_of_another_version_is_named_with_the_line_to_type(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(yard: Yard) -> None:
        pid = yard.backend.supervisor.facts["pid"]
        yard.backend.supervisor.close()
        with monkeypatch.context() as patch:
            patch.setattr("paddock.backends.jail._supervisor.VERSION", VERSION + 1)
            with pytest.raises(SupervisorUnavailableError, match="another version") as caught:
                await yard.backend.state()
        assert f"kill {pid}" in str(caught.value)

    play(scene)


def test_one_from_before_there_were_frames_is_named_with_the_line_to_type(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the first frame for the length of a message that is too long, and ends the connection."""
    monkeypatch.setattr(duplex, "LEAVE_SECONDS", 0.05)
    before = (
        "import socket, sys\nlistener = socket.socket(socket.AF_UNIX)\nlistener.bind(sys.argv[1])\n"
        "listener.listen()\nprint(flush=True)\nwhile True: listener.accept()[0].close()"
    )

    async def scene() -> None:
        client = SupervisorClient(state_dir)
        with pytest.raises(SupervisorUnavailableError, match="another version") as caught:
            await client.connect()
        assert f"kill {old.pid}" in str(caught.value)

    socket_name = str(state_dir / layout.SUPERVISOR_SOCKET)
    with subprocess.Popen([sys.executable, "-c", before, socket_name], stdout=subprocess.PIPE) as old:
        assert old.stdout is not None
        old.stdout.readline()
        asyncio.run(scene())
        old.kill()


def test_its_names_and_first_frames_never_change(play: Play) -> None:
    """By them a daemon of any version finds it, and tells that it is of another one: docs/supervisor.md."""
    names = layout.SUPERVISOR_LOCK, layout.SUPERVISOR_SOCKET, layout.SUPERVISOR_CONFIG, layout.RUN
    assert names == ("supervisor.lock", "supervisor.sock", "supervisor.json", "run")

    async def scene(yard: Yard) -> None:
        yard.backend.supervisor.close()
        with socket.socket(socket.AF_UNIX) as door:
            await asyncio.to_thread(door.connect, str(yard.state_dir / layout.SUPERVISOR_SOCKET))
            # A HELLO on channel 0: length, kind 1, no flags, channel, no descriptors.
            door.send(b"\x0d\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0" + b'{"version":0}')
            answer = await asyncio.to_thread(door.recv, 65536)
        body = json.loads(answer[16:])
        assert answer[4:12] == b"\x04\0\0\0\0\0\0\0"  # ERROR, on channel 0
        assert "another version" in body["error"]

    play(scene)


def test_a_create_that_a_dead_supervisor_never_heard_is_asked_of_its_successor(private_play: Play) -> None:
    async def scene(yard: Yard) -> None:
        pid = int(yard.backend.supervisor.facts["pid"])
        watch = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        select.select([watch], [], [])  # not the loop: it has not seen yet that the connection is gone
        os.close(watch)
        made = await yard.create()
        assert made.id in (await yard.backend.state()).living
        await made.kill()
        await made.aclose()

    private_play(scene)


def test_a_machine_without_a_free_range_of_ids_says_what_to_do() -> None:
    slots = Slots(pool=-1, _next=layout.MOST_RANGES)
    with pytest.raises(NoSlot) as caught:
        slots.take()
    answer = problem(as_jail_error(caught.value, Steps()))
    error = _error(answer)
    assert isinstance(error, ResourceExhaustedError)
    assert "paddock ls" in str(error)


def test_more_than_five_thousand_sandboxes_have_a_range_of_ids_each_and_none_those_of_trees() -> None:
    bases = [layout.range_base(slot) for slot in range(layout.MOST_RANGES)]
    trees = range(layout.TREE_ID_BASE, layout.TREE_ID_BASE + 2 * layout.ID_COUNT)
    assert len(bases) > 5_000
    assert all(next - base >= layout.ID_COUNT for base, next in itertools.pairwise(bases))
    assert bases[-1] + layout.ID_COUNT <= 2**31
    assert not any(base < trees.stop and trees.start < base + layout.ID_COUNT for base in bases)


def test_the_uids_of_sandboxes_are_spread_over_the_kernels_table_of_users() -> None:
    uids = (layout.range_base(slot) + uid for slot in range(5_000) for uid in (0, 1000))
    chains = Counter(((uid >> 7) + uid) % 128 for uid in uids)
    assert max(chains.values()) < 2 * 10_000 / 128


def test_a_disk_that_could_not_write_is_said_to_be_full_and_not_a_fault_of_ours() -> None:
    failed = OSError(errno.EIO, os.strerror(errno.EIO), "fsconfig overlay create")
    for error in (as_jail_error(failed, Steps()), MountError("/data cannot be mounted", errno.EIO)):
        told = _error(problem(error))
        assert isinstance(told, ResourceExhaustedError)
        assert "df -h" in str(told)


def test_that_a_busy_sandbox_does_not_stop_in_time_is_no_fault_of_ours() -> None:
    error = _error(problem(failure(errno.ETIMEDOUT, ("freeze cgroup", "sb_1"))))
    assert type(error) is SandboxError
    assert error.hint == "try again"


def test_a_supervisor_waits_for_the_client_that_started_it_and_leaves_after_it(state_dir: Path) -> None:
    async def scene() -> None:
        configure(state_dir, idle_seconds=1e-6)
        client = SupervisorClient(state_dir, for_tests=True)
        assert (await client.request("list"))["living"] == {}
        supervisor = os.pidfd_open(int(client.facts["pid"]))
        client.close()
        assert select.select([supervisor], [], [], 60.0)[0]
        os.close(supervisor)

    asyncio.run(scene())


def test_what_is_kept_of_another_engine_s_sandbox_outlives_the_daemon_as_long_as_its_caller_does(
    state_dir: Path,
) -> None:
    async def scene() -> None:
        prepare(state_dir)
        configure(state_dir, idle_seconds=0.05)
        first = SupervisorClient(state_dir, for_tests=True)
        reading, writing = os.pipe()
        caller = subprocess.Popen(["sleep", "1000"])  # noqa: ASYNC220 - at once
        kept = {"id": "sb_elsewhere", "command": "ex_1", "outside": True}
        owner = f"{caller.pid} {start_time(caller.pid)}"
        with pytest.raises(SandboxDiedError):
            await first.request("keep", (writing,), id="sb_elsewhere", command="ex_1", owner=owner, after=0)
        await first.request("keep", (writing,), owner=owner, after=0, **kept)
        os.close(writing)
        supervisor = os.pidfd_open(int(first.facts["pid"]))
        first.close()
        assert not select.select([supervisor], [], [], 0.5)[0]
        second = SupervisorClient(state_dir, for_tests=True)
        assert (await second.request("list"))["kept_outside"] == {"sb_elsewhere": {"ex_1": owner}}
        (again,) = (await second.request("kept", **kept))["fds"]
        os.write(again, b"whole")
        os.close(again)
        assert os.read(reading, 100) == b"whole"
        second.close()
        caller.kill()
        caller.wait()
        assert select.select([supervisor], [], [], 60.0)[0]
        assert os.read(reading, 100) == b""
        os.close(reading)
        os.close(supervisor)

    asyncio.run(scene())


def test_one_that_hangs_is_named_and_goes_on_with_all_it_had(
    private_play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(yard: Yard) -> None:
        instance, client = await yard.create(), yard.backend.supervisor
        pid = int(client.facts["pid"])
        with stopped_supervisor(yard), monkeypatch.context() as impatient:
            impatient.setattr(duplex, "LOOK_SECONDS", 0.1)
            connection = client._connection
            assert connection is not None
            connection.expect_answers()  # by the new period
            for call in (instance.kill, yard.backend.state):
                with pytest.raises(SupervisorUnavailableError, match=f"hangs: process {pid} has not") as caught:
                    await call()
                assert f"kill -9 {pid}" in str(caught.value.hint)
            impatient.setattr(duplex, "LOOK_SECONDS", 1000.0)  # nobody waits anew
            together = await asyncio.gather(*(yard.backend.state() for _ in range(9)), return_exceptions=True)
            assert {type(error) for error in together} == {SupervisorUnavailableError}
        await instance.kill()
        assert (await yard.backend.state()).living[instance.id] is not None
        assert client.facts["pid"] == pid

    private_play(scene)
