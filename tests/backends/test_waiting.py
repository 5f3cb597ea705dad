"""What waits to become a sandbox becomes one whole, or ends; it is nobody's, and dies with whoever made it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from paddock.backends import SandboxPlan, TreeMount
from paddock.backends.jail import SupervisorClient
from paddock.backends.vmm import VmmBackend, VmmInstance
from paddock.errors import PaddockError
from paddock.linux import proc
from paddock.model import IdPrefix, Limits, Mount, MountMode, SandboxId, SandboxSpec, mint, replace
from paddock.storage.pool.trees import WAITING
from paddock.supervisor import layout
from paddock.supervisor.records import Records
from tests.backends.spares import settled
from tests.backends.test_vmm import output
from tests.backends.vmms import PlainVmm, VmmHarness, processes, vmms
from tests.conformance import eventually

LIMITS = Limits(disk_mib=256)


@pytest.fixture(scope="module")
def harness() -> Generator[VmmHarness]:
    with vmms() as found:
        yield found


class Room:
    """A backend whose VMMs wait, and the sandboxes that are made with it."""

    def __init__(self, harness: VmmHarness, backend: VmmBackend) -> None:
        self.harness, self.backend = harness, backend
        self.plans: list[SandboxPlan] = []
        self._instances: list[VmmInstance] = []
        backend.waiting.quiet_seconds = 0.0
        backend.waiting.count, backend.waiting.from_create = 1, 1
        backend.waiting._has_room = lambda kind: True  # whatever else this machine has in its memory

    async def plan(self, **changes: Any) -> SandboxPlan:
        spec = SandboxSpec(limits=LIMITS, **changes)
        self.plans.append(await self.harness.plan(spec))
        return self.plans[-1]

    async def create(self, plan: SandboxPlan | None = None) -> VmmInstance:
        self._instances.append(await self.backend.create(plan or await self.plan()))
        return self._instances[-1]

    async def stock(self) -> str:
        """One waits; its id."""
        if not len(self.backend.waiting._stock):
            await (await self.create()).kill()
        await settled(self.backend.waiting)
        assert len(self.backend.waiting._stock) == 1
        (id,) = self.waiting()
        return id

    def waiting(self) -> list[str]:
        return [name for name in self.run() if name.startswith(WAITING)]

    def run(self) -> list[str]:
        return os.listdir(self.harness.state_dir / layout.RUN)

    def trees(self) -> list[str]:
        return [name for name in self.harness.pool.names() if name.startswith(WAITING)]

    async def close(self) -> None:
        for instance in self._instances:
            await instance.kill()
            await instance.aclose()
        await self.backend.aclose()
        for plan in self.plans:
            self.harness.pool.delete(plan.tree)


def play(harness: VmmHarness, scene: Callable[[Room], Awaitable[None]], *, for_tests: bool = False) -> None:
    async def main() -> None:
        supervisor = SupervisorClient(harness.state_dir, for_tests=True) if for_tests else harness.supervisor
        room = Room(harness, PlainVmm(harness.state_dir, supervisor=supervisor))
        try:
            await scene(room)
        finally:
            await room.close()
        assert room.waiting() == room.trees() == []

    asyncio.run(main())


def state_of(room: Room, id: str) -> dict[str, Any]:
    return json.loads((room.harness.state_dir / layout.RUN / id / "state.json").read_bytes())


def test_a_create_takes_what_waits_and_all_of_it_is_the_sandboxes_own(harness: VmmHarness) -> None:
    async def scene(room: Room) -> None:
        id = await room.stock()
        vmm = state_of(room, id)
        plan = await room.plan(env={"GREETING": "hello", "HOME": "/nowhere"}, idle_seconds=900.0)
        instance = await room.create(plan)
        record = state_of(room, plan.id)
        assert record["pid"] == vmm["pid"], "it was not made anew"
        assert (record["id"], record["tree"], record["kind"]) == (plan.id, plan.tree, "plain")
        assert (record["deadline"], record["idle_seconds"]) == (plan.deadline, 900.0)
        assert await output(instance, "sh", "-c", "echo $GREETING $HOME > ~/mine; cat ~/mine") == b"hello /home/user\n"
        await settled(room.backend.waiting)
        assert id not in room.run()
        assert id not in room.trees()
        tree = room.harness.pool.open(plan.tree)
        try:
            assert os.stat("root/home/user/mine", dir_fd=tree).st_size == 17, "it has written into its own tree"
        finally:
            os.close(tree)

    play(harness, scene)


def test_what_was_claimed_outlives_its_service_and_the_next_one_finds_it(harness: VmmHarness) -> None:
    async def scene(room: Room) -> None:
        id = await room.stock()
        first = state_of(room, id)["pid"]
        plan = await room.plan(env={"GREETING": "hello"})
        await (await room.backend.create(plan)).aclose()
        await room.backend.aclose()
        later = PlainVmm(harness.state_dir, supervisor=harness.supervisor)
        try:
            adopted = await later.adopt(plan.id)
            assert adopted is not None
            assert state_of(room, plan.id)["pid"] == first
            assert await output(adopted, "sh", "-c", "echo $GREETING") == b"hello\n"
            await adopted.kill()
            await adopted.aclose()
        finally:
            await later.aclose()

    play(harness, scene)


async def claimed_without_supervisor(room: Room, plan: SandboxPlan) -> int | None:
    """A pidfd of the sandbox, and the supervisor is stopped; None: its time was over before."""
    supervisor, first = int(room.backend.supervisor.facts["pid"]), None
    try:
        await room.create(plan)
        first = os.pidfd_open(state_of(room, plan.id)["pid"])
    except (PaddockError, OSError):
        if proc.boottime() < plan.deadline:
            raise
        return None
    os.kill(supervisor, signal.SIGSTOP)
    if proc.boottime() < plan.deadline:
        return first
    os.close(first)
    os.kill(supervisor, signal.SIGCONT)
    return None


def test_a_claimed_one_ends_by_its_own_deadline_even_when_the_supervisor_is_dead(harness: VmmHarness) -> None:
    async def scene(room: Room) -> None:
        first, seconds = None, 4.0
        while first is None:  # its time may be over before that
            await room.stock()
            plan = replace(await room.plan(), deadline=proc.boottime() + seconds)
            first = await claimed_without_supervisor(room, plan)
            seconds *= 2
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(first, ended.set)
        try:
            async with asyncio.timeout(60):
                await ended.wait()
        finally:
            asyncio.get_running_loop().remove_reader(first)
            os.close(first)
            os.kill(int(room.backend.supervisor.facts["pid"]), signal.SIGCONT)

    play(harness, scene)


def test_one_with_a_way_out_waits_with_it_and_is_taken_for_no_other(harness: VmmHarness) -> None:
    async def scene(room: Room) -> None:
        id = await room.stock()
        without = state_of(room, id)["pid"]
        plan = replace(await room.plan(), exits=True)
        await room.create(plan)
        assert state_of(room, plan.id)["pid"] != without
        await settled(room.backend.waiting)
        assert len(room.backend.waiting._stock) == 2
        (waits,) = (name for name in room.waiting() if state_of(room, name)["exits"])
        first = state_of(room, waits)["pid"]
        plan = replace(await room.plan(), exits=True)
        instance = await room.create(plan)
        assert state_of(room, plan.id)["pid"] == first
        found = await room.backend.exits(plan.id, plan.instance_id)
        assert found is not None
        for one in found.detach():
            os.close(one)
        assert b"/dev/" in await output(instance, "sh", "-c", "echo $SSL_CERT_FILE")

    play(harness, scene)


def test_nothing_waits_for_a_program_that_makes_one_sandbox(harness: VmmHarness) -> None:
    async def scene(room: Room) -> None:
        room.backend.waiting.from_create = 2
        await (await room.create()).kill()
        await settled(room.backend.waiting)
        assert len(room.backend.waiting._stock) == 0
        await (await room.create()).kill()
        await settled(room.backend.waiting)
        assert len(room.backend.waiting._stock) == 1

    play(harness, scene)


def test_another_service_sees_no_sandbox_in_what_waits(harness: VmmHarness) -> None:
    async def scene(room: Room) -> None:
        id = await room.stock()
        other = PlainVmm(harness.state_dir, supervisor=harness.supervisor)
        try:
            assert id not in (await other.state()).living
            assert await other.adopt(SandboxId(id)) is None
            assert id in (await other.trees()).in_use
        finally:
            await other.aclose()

    play(harness, scene)


@pytest.mark.parametrize("what", ["limits", "mounts", "trees", "protect", "written"])
def test_one_that_waits_is_not_taken_for_what_it_can_not_be(harness: VmmHarness, what: str, tmp_path: Path) -> None:
    async def scene(room: Room) -> None:
        id = await room.stock()
        plan = await room.plan()
        if what == "limits":
            limits = replace(LIMITS, open_files=LIMITS.open_files - 1)
            plan = replace(plan, spec=replace(plan.spec, limits=limits))
        elif what == "mounts":
            mount = Mount(source=str(tmp_path), target="/here", mode=MountMode.READ_WRITE)
            plan = replace(plan, spec=replace(plan.spec, mounts=(mount,)))
        elif what == "trees":
            name = mint(IdPrefix.WORKSPACE)
            harness.pool.create(name)
            room.plans.append(replace(plan, tree=name))
            plan = replace(plan, trees=(TreeMount(tree=name, target="/workspace", writable=True),))
        elif what == "protect":
            plan = replace(plan, protect=("/etc/hostname",))
        else:
            earlier = await room.create(plan)
            assert await output(earlier, "sh", "-c", "echo before > ~/mine") == b""
            await earlier.kill()
            await settled(room.backend.waiting)
            (id,) = room.waiting()
            plan = replace(plan, instance_id=1)
        first = state_of(room, id)["pid"]
        instance = await room.create(plan)
        assert state_of(room, plan.id)["pid"] != first
        assert state_of(room, id)["pid"] == first
        if what == "written":
            assert await output(instance, "sh", "-c", "cat ~/mine") == b"before\n"

    play(harness, scene)


def test_one_that_died_in_waiting_costs_nobody_a_sandbox(harness: VmmHarness) -> None:
    async def scene(room: Room) -> None:
        id = await room.stock()
        room.backend.waiting.count = 0
        os.kill(processes(id)["controller"], signal.SIGKILL)
        plan = await room.plan()
        assert await output(await room.create(plan), "echo", "here") == b"here\n"

        async def gone() -> bool:
            return room.waiting() == room.trees() == []

        await eventually("nothing is left of it", gone)

    play(harness, scene)


def test_of_two_that_come_at_once_each_has_a_sandbox_of_its_own(harness: VmmHarness) -> None:
    async def scene(room: Room) -> None:
        id = await room.stock()
        first = state_of(room, id)["pid"]
        plans = [await room.plan(env={"WHO": str(number)}) for number in range(2)]
        instances = await asyncio.gather(*map(room.create, plans))
        assert len({state_of(room, plan.id)["pid"] for plan in plans}) == 2
        assert first in {state_of(room, plan.id)["pid"] for plan in plans}
        for number, instance in enumerate(instances):
            assert await output(instance, "sh", "-c", "echo $WHO") == b"%d\n" % number

    play(harness, scene)


_KILLED = """
import asyncio, sys
from pathlib import Path
from tests.backends.test_waiting import Room
from tests.backends.vmms import PlainVmm, VmmHarness, furnished
from tests.vmm.plain import in_kits

state_dir = Path(sys.argv[1])

async def main():
    room = Room(VmmHarness(state_dir, pool, templates), PlainVmm(state_dir))
    print(await room.stock(), flush=True)
    await asyncio.Event().wait()

with in_kits(state_dir), furnished(state_dir) as (pool, templates):
    asyncio.run(main())
"""


def test_it_ends_with_a_service_that_is_killed_and_its_tree_is_swept(harness: VmmHarness) -> None:
    async def scene(room: Room) -> None:
        service = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _KILLED, str(harness.state_dir), stdout=subprocess.PIPE
        )
        assert service.stdout is not None
        id = (await service.stdout.readline()).decode().strip()
        first = os.pidfd_open(state_of(room, id)["pid"])
        service.kill()
        await service.wait()
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(first, ended.set)
        async with asyncio.timeout(60):
            await ended.wait()
        asyncio.get_running_loop().remove_reader(first)
        os.close(first)
        await room.backend.state()  # the supervisor buries it before it answers
        assert room.trees() == [id]
        assert id not in harness.pool.in_use
        harness.pool.delete(id)
        for name in harness.pool.names():  # of its first sandbox
            if name.startswith(IdPrefix.SANDBOX):
                harness.pool.delete(name)

    play(harness, scene)


def test_one_that_was_just_being_begun_when_its_service_ended_leaves_no_tree(
    harness: VmmHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, made = threading.Event(), threading.Event(), threading.Event()

    async def scene(room: Room) -> None:
        pool = await room.backend.trees()
        create = pool.create

        def slowly(name: str, **how: Any) -> None:
            if name.startswith(WAITING):
                begun.set()
                assert go_on.wait(60)
            create(name, **how)
            if name.startswith(WAITING):
                made.set()

        monkeypatch.setattr(pool, "create", slowly)
        await (await room.create()).kill()
        assert await asyncio.to_thread(begun.wait, 60)
        closing = asyncio.ensure_future(room.backend.waiting.aclose())
        for _ in range(20):  # it is told to give up
            await asyncio.sleep(0)
        go_on.set()
        await closing
        assert await asyncio.to_thread(made.wait, 60)

    play(harness, scene)


def test_the_record_of_a_half_claimed_one_is_put_back(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        (tmp_path / "sb_new").mkdir()
        (tmp_path / "sb_new" / "state.json").write_text(json.dumps(_RECORD))
        records = Records(directory)
        records.put_back()
        assert records.living() == ["wv_old"]
        found = records.read("wv_old")
        assert found is not None
        assert found.id == "wv_old"
    finally:
        os.close(directory)


_RECORD: dict[str, Any] = {
    "id": "wv_old",
    "pid": 1,
    "start": 1,
    "boot": "",
    "slot": None,
    "group": None,
    "deadline": 0.0,
    "tree": "wv_old",
    "template": "{}",
    "limits": {},
}
