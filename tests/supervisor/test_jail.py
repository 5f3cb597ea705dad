"""What the supervisor promises of a jail, whoever is alive to see it."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from paddock.errors import InternalError, PaddockError, SupervisorUnavailableError
from paddock.linux import mountinfo, proc
from paddock.model import Limit, Limits, SandboxId
from paddock.supervisor import layout
from tests.conformance.leaks import Snapshot, wait_until_clean
from tests.conftest import no_new_sandbox, private_state, supervisors
from tests.orphans import wait_until
from tests.supervisor.conftest import Yard, configure, open_yard, run

_SPARE = ("cgroup", "sockets", "clone", "maps")
# Of a spare, then of the sandbox that it becomes.
SUPERVISOR_STEPS = (*_SPARE, "limits", "overlay", "usr", "trust", "name", "sizes", "send", "exits", "posture")
SUPERVISOR_STEPS += ("places", "written")
# Of pid 1 as a spare and then with its plan, and of the first agent.
CHILD_STEPS = ("shed", "unshare", "join", "identity", "stage", "agent")
CHILD_STEPS += ("root", "usr", "dev", "proc", "tmp", "sizes", "pivot", "drop", "filter", "limits", "user", "confine")
Play = Callable[[Callable[[Yard], Any]], Any]


@pytest.fixture(scope="module")
def state_of_module() -> Generator[Path]:
    """Its supervisor counts files more often than usual."""
    with private_state() as directory:
        configure(directory, watch_seconds=0.2)
        yield directory


def fresh_state(state_dir: Path) -> set[str]:
    return {entry.name for entry in (state_dir / layout.RUN).iterdir()}


def supervisor_pid(yard: Yard) -> int:
    return int(yard.backend.supervisor.facts["pid"])


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _pid_namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/pid")


def state_of(state_dir: Path, id: str) -> dict[str, Any]:
    return json.loads((state_dir / layout.RUN / id / "state.json").read_bytes())


@pytest.mark.root
@pytest.mark.parametrize("step", [*(f"supervisor:{step}" for step in SUPERVISOR_STEPS), *CHILD_STEPS])
def test_a_create_that_fails_at_any_step_leaves_nothing_and_the_next_one_works(
    step: str, play: Play, module_state: Path
) -> None:
    async def scene(yard: Yard) -> None:
        yard.backend.fault = step
        plan = yard.plan(exits=True)
        with pytest.raises(InternalError, match="InjectedFault"):
            await yard.backend.create(plan)
        assert fresh_state(module_state) == set()
        yard.pool.delete(plan.tree)
        yard.backend.fault = ""
        instance = await yard.create()
        assert (await run(instance, "true"))[0].code == 0
        await instance.kill()

    play(scene)


@pytest.mark.root
@pytest.mark.parametrize("step", CHILD_STEPS)
def test_a_child_that_is_killed_at_any_step_leaves_nothing(step: str, play: Play, module_state: Path) -> None:
    async def scene(yard: Yard) -> None:
        yard.backend.fault = f"{step}!"
        with pytest.raises(InternalError, match="died before it was ready"):
            await yard.create()
        assert fresh_state(module_state) == set()

    play(scene)


@pytest.mark.root
@pytest.mark.parametrize("step", SUPERVISOR_STEPS)
def test_a_create_is_done_once_more_if_the_supervisor_is_killed_at_any_step_of_it(
    step: str, private_play: Play, state_dir: Path
) -> None:
    async def scene(yard: Yard) -> None:
        neighbour = await yard.create()
        yard.backend.fault = f"supervisor:{step}!"
        first = supervisor_pid(yard)
        plan = yard.plan(exits=True)
        instance = await yard.backend.create(plan)
        assert supervisor_pid(yard) != first
        known = (await yard.backend.state()).living
        assert known[neighbour.id] is None, "what was alive is adopted"
        assert known[plan.id] is None
        assert (await run(instance, "echo", "twice"))[1] == b"twice\n"
        await instance.kill()
        await yard.backend.forget(plan.id)
        assert not any(entry == plan.id for entry in fresh_state(state_dir)), "of neither of the two"
        assert (await run(neighbour, "echo", "still here"))[1] == b"still here\n"
        await neighbour.kill()

    private_play(scene)


def test_what_did_not_stand_still_to_the_end_is_the_platforms_error_and_can_be_tried_again(
    private_play: Play,
) -> None:
    async def scene(yard: Yard) -> None:
        instance = await yard.create()
        with pytest.raises(SupervisorUnavailableError, match="did not stand still"):
            async with instance.frozen():
                os.kill(supervisor_pid(yard), signal.SIGKILL)
        async with instance.frozen():
            pass
        assert (await run(instance, "echo", "goes on"))[1] == b"goes on\n"
        await instance.kill()

    private_play(scene)


def test_a_dead_supervisor_loses_no_sandbox_and_the_next_one_can_kill_it(private_play: Play) -> None:
    async def scene(yard: Yard) -> None:
        instance = await yard.create()
        os.kill(supervisor_pid(yard), signal.SIGKILL)
        assert (await run(instance, "echo", "alive"))[1] == b"alive\n"
        adopted = await yard.backend.adopt(instance.id)
        assert adopted is not None
        assert (await run(adopted, "echo", "adopted"))[1] == b"adopted\n"
        await adopted.kill()
        assert await yard.backend.adopt(instance.id) is None

    private_play(scene)


def test_who_waits_for_an_end_hears_of_it_although_the_supervisor_died(private_play: Play, state_dir: Path) -> None:
    async def scene(yard: Yard) -> None:
        instance = await yard.create()
        waiting = asyncio.ensure_future(instance.wait_ended())
        first = supervisor_pid(yard)
        record = state_of(state_dir, instance.id)
        os.kill(first, signal.SIGKILL)
        os.kill(record["pid"], signal.SIGKILL)
        async with asyncio.timeout(60):
            assert (await waiting).reason  # nobody asks anything
        assert supervisor_pid(yard) != first
        await yard.backend.forget(instance.id)

    private_play(scene)


def test_a_deadline_is_kept_with_no_service_alive(module_state: Path) -> None:
    async def create() -> SandboxId:
        async with open_yard(module_state) as yard:
            instance = await yard.create()
            await instance.set_deadline(proc.boottime() + 3)
            await instance.aclose()
            return instance.id

    id = asyncio.run(create())

    async def look() -> Any:
        async with open_yard(module_state) as yard:
            ending = (await yard.backend.state()).living[id]
            await yard.backend.forget(id)
            return ending

    assert wait_until(lambda: not (module_state / layout.RUN / id).exists())
    assert asyncio.run(look()).limit is Limit.TTL


def test_a_deadline_is_kept_with_neither_service_nor_supervisor_alive(private_play: Play, state_dir: Path) -> None:
    async def scene(yard: Yard) -> None:
        instance = await yard.create()
        record = state_of(state_dir, instance.id)
        await instance.set_deadline(proc.boottime() + 3)
        os.kill(supervisor_pid(yard), signal.SIGKILL)

        def dead() -> bool:
            try:
                return proc.start_time(record["pid"]) != record["start"]
            except OSError:
                return True

        assert await asyncio.to_thread(wait_until, dead)
        assert (await yard.backend.state()).living[instance.id] is not None
        await yard.backend.forget(instance.id)

    private_play(scene)


@pytest.mark.slow
def test_a_deadline_is_kept_although_the_supervisor_is_stopped(play: Play, module_state: Path) -> None:
    async def scene(yard: Yard) -> None:
        instance = await yard.create()
        record = state_of(module_state, instance.id)
        await instance.set_deadline(proc.boottime() + 3)
        os.kill(supervisor_pid(yard), signal.SIGSTOP)
        try:
            stat = Path(f"/proc/{record['pid']}/stat")
            assert await asyncio.to_thread(wait_until, lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
        finally:
            os.kill(supervisor_pid(yard), signal.SIGCONT)
        assert (await instance.wait_ended()).limit is Limit.TTL
        await yard.backend.forget(instance.id)

    play(scene)


def test_a_later_deadline_replaces_the_earlier_one_in_pid_1_too(private_play: Play, state_dir: Path) -> None:
    async def scene(yard: Yard) -> None:
        instance = await yard.create()
        for seconds in (3, 60):
            await instance.set_deadline(proc.boottime() + seconds)
        os.kill(supervisor_pid(yard), signal.SIGKILL)
        # So long inside is longer than the first deadline and its grace.
        assert (await run(instance, "sleep", "5"))[0].code == 0
        await instance.kill()

    private_play(scene)


def test_the_death_of_pid_1_is_told_to_every_service_that_watches(play: Play, module_state: Path) -> None:
    async def scene(yard: Yard) -> None:
        instance = await yard.create()
        waiting = asyncio.ensure_future(instance.wait_ended())
        await asyncio.sleep(0)
        os.kill(state_of(module_state, instance.id)["pid"], signal.SIGKILL)
        assert "pid 1" in (await waiting).reason
        await yard.backend.forget(instance.id)

    play(scene)


def test_faults_are_refused_by_a_supervisor_that_was_not_started_for_tests(state_dir: Path) -> None:
    async def scene() -> None:
        async with open_yard(state_dir, for_tests=False) as yard:
            yard.backend.fault = "supervisor:clone"
            with pytest.raises(PaddockError, match="only into a supervisor that was started for tests"):
                await yard.create()

    asyncio.run(scene())


@pytest.mark.root
def test_a_supervisor_whose_state_directory_was_deleted_leaves_nothing() -> None:
    state = Path(tempfile.mkdtemp(prefix="pd-"))
    before = Snapshot.take(state)

    async def scene() -> None:
        async with open_yard(state) as yard:
            await (await yard.create()).aclose()
            # As soon as it has answered, it makes spares there: a directory that gets one meanwhile can't be removed.
            (supervisor,) = supervisors(state)
            os.kill(supervisor, signal.SIGSTOP)
            try:
                assert wait_until(lambda: proc.stands(supervisor))
                shutil.rmtree(state)
            finally:
                os.kill(supervisor, signal.SIGCONT)
            await yard.backend.supervisor.request("stop")

    asyncio.run(scene())
    wait_until_clean(before, state, ignore=("files", "descriptors"))


@pytest.mark.root
def test_a_test_that_fails_when_it_has_killed_the_supervisor_leaves_nothing() -> None:
    async def scene(state: Path) -> None:
        async with open_yard(state) as yard:
            await (await yard.create(ttl_seconds=600)).aclose()
        (supervisor,) = supervisors(state)
        os.kill(supervisor, signal.SIGKILL)
        assert wait_until(lambda: not supervisors(state))

    def fail() -> None:
        with private_state() as state:
            seen.append((state, Snapshot.take(state)))
            asyncio.run(scene(state))
            raise ZeroDivisionError

    seen: list[tuple[Path, Snapshot]] = []
    with pytest.raises(ZeroDivisionError):
        fail()
    ((state, before),) = seen
    wait_until_clean(before, state, ignore=("descriptors",))


def test_a_test_that_leaves_a_sandbox_in_the_directory_of_its_module_fails(tmp_path: Path) -> None:
    run = tmp_path / layout.RUN
    (run / "sb_before").mkdir(parents=True)
    with no_new_sandbox(tmp_path, seconds=0):
        (run / "sb_ended").mkdir()
        (run / "sb_ended").rmdir()
    with pytest.raises(AssertionError, match="nobody killed: \\['sb_left'\\]"), no_new_sandbox(tmp_path, seconds=0):
        (run / "sb_left").mkdir()


@pytest.mark.root
def test_the_spawner_holds_nothing_of_a_sandbox(private_play: Play) -> None:
    """Else the end of the first one would not be seen, and who had called it would wait."""

    async def scene(yard: Yard) -> None:
        instance = await yard.create()
        supervisor = supervisor_pid(yard)
        (spawner,) = (pid for pid in children(supervisor) if _pid_namespace(pid) == _pid_namespace(supervisor))
        own = {"0", "1", "2", "7"}  # it has others for as long as it makes the next spare
        assert await asyncio.to_thread(wait_until, lambda: set(os.listdir(f"/proc/{spawner}/fd")) == own)
        await instance.kill()

    private_play(scene)


@pytest.mark.root
def test_the_host_sees_nothing_of_the_pool_in_its_own_mounts(play: Play, module_state: Path) -> None:
    async def scene(yard: Yard) -> None:
        instance = await yard.create()
        assert not [mount for mount in mountinfo.read() if os.fsencode(module_state) in mount.mount_point]
        await instance.kill()

    play(scene)


@pytest.mark.root
def test_more_files_than_allowed_end_the_sandbox_with_the_limit_named(play: Play) -> None:
    async def scene(yard: Yard) -> None:
        if yard.pool.driver != "btrfs":
            pytest.skip(f"inodes are watched on btrfs; this pool is {yard.pool.driver}")
        instance = await yard.create(limits=Limits(inodes=500))
        waiting = asyncio.ensure_future(instance.wait_ended())
        with pytest.raises(PaddockError):
            await run(instance, "sh", "-c", "i=0; while :; do : > /workspace/$i; i=$((i+1)); done")
        assert (await waiting).limit is Limit.INODES
        await yard.backend.forget(instance.id)

    play(scene)


@pytest.mark.root
def test_files_that_were_removed_again_do_not_count(play: Play) -> None:
    async def scene(yard: Yard) -> None:
        if yard.pool.driver != "btrfs":
            pytest.skip(f"inodes are watched on btrfs; this pool is {yard.pool.driver}")
        instance = await yard.create(limits=Limits(inodes=300))
        # Far more than the limit over time, and over several looks of the watch, but never many at once.
        make = "for i in $(seq 100); do : > /workspace/$i; done; rm /workspace/*"
        script = f"n=0; while [ $n -lt 40 ]; do {make}; n=$((n+1)); done; sleep 1"
        assert (await run(instance, "sh", "-c", script))[0].code == 0
        await instance.kill()

    play(scene)


def spawner_of(supervisor: int) -> int:
    """Its only child that lives in no pid namespace of its own."""
    (pid,) = [pid for pid in children(supervisor) if len(proc.status(pid)["NSpid"].split()) == 1]
    return pid


def test_sandboxes_live_on_and_more_are_made_when_the_spawner_was_killed(private_play: Play) -> None:
    """The supervisor ends with it, and the next takes over."""

    async def scene(yard: Yard) -> None:
        first = await yard.create()
        supervisor = supervisor_pid(yard)
        spawner = spawner_of(supervisor)
        os.kill(spawner, signal.SIGKILL)
        later = [await yard.create() for _ in range(layout.DEFAULT_SPARES + 1)]  # there may be as many spares
        assert supervisor_pid(yard) != supervisor
        assert spawner_of(supervisor_pid(yard)) != spawner
        for instance in (first, *later):
            assert (await run(instance, "echo", "alive"))[1] == b"alive\n"
            await instance.kill()

    private_play(scene)


def test_a_spare_that_dies_in_waiting_is_missed_by_nobody(play: Play) -> None:
    async def scene(yard: Yard) -> None:
        await (await yard.create()).kill()
        assert await asyncio.to_thread(wait_until, lambda: bool(children(supervisor_pid(yard))))
        for pid in children(supervisor_pid(yard)):
            ended = os.pidfd_open(pid)
            os.kill(pid, signal.SIGKILL)
            # What is inside lives on for a moment, and might be given to the create before it ends with its pid 1.
            assert select.select([ended], [], [], 60)[0]
            os.close(ended)
        instance = await yard.create()
        assert (await run(instance, "true"))[0].code == 0
        await instance.kill()

    play(scene)


@pytest.mark.root
def test_a_death_that_can_not_be_written_down_is_told_all_the_same(play: Play, module_state: Path) -> None:
    async def scene(yard: Yard) -> None:
        instance = await yard.create()
        (module_state / layout.RUN / f".{instance.id}.ended.new").mkdir()  # in the way of the record
        os.kill(state_of(module_state, instance.id)["pid"], signal.SIGKILL)
        async with asyncio.timeout(60):
            ending = await instance.wait_ended()
        assert ending.reason == "its pid 1 ended"
        assert instance.id not in (await yard.backend.state()).living
        (module_state / layout.RUN / f".{instance.id}.ended.new").rmdir()

    play(scene)
