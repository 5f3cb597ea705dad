"""What sleeps on disk holds nothing, is not taken for dead, and is woken once by whoever uses it; what keeps it from
falling asleep leaves it awake, and what keeps it from waking leaves it asleep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from service_world import ME, Place, Rig, put, until
from test_workspace_trees import OneWorkspace

from paddock.backends.base import Ending
from paddock.daemon.clock import Clock
from paddock.daemon.main.service import Service
from paddock.errors import ResourceExhaustedError, SandboxDiedError, UnsupportedError
from paddock.model import (
    CreateSandbox,
    DeleteSnapshot,
    ExecSpec,
    ForkSandbox,
    GetSandbox,
    GetUsage,
    InspectSandbox,
    KillSandbox,
    Limit,
    ListAudit,
    ListProcesses,
    ListSandboxes,
    ListSnapshots,
    PauseSandbox,
    ResumeSandbox,
    RunExec,
    SandboxId,
    SandboxSpec,
    State,
)
from paddock.model.config import Config

HERE = ExecSpec(argv=("echo", "here"))


class Sleeper:
    """A sandbox with a file in its tree, and one in its workspace."""

    def __init__(self, rig: Rig, service: Service) -> None:
        self.rig, self.service, self.id = rig, service, SandboxId("")

    async def begin(self, **spec: Any) -> Sleeper:
        for name in ("tp_host", "bs_1", "ws_1"):
            self.rig.pool.create(name)
        asked = SandboxSpec(**{"workspace": "task", "persistent": True, **spec})
        self.id = (await self.service.perform(CreateSandbox(spec=asked), ME)).id
        for tree in (self.id, "ws_1"):
            self.file(tree).write_text("kept")
        return self

    def file(self, tree: str) -> Path:
        return self.rig.state_dir / "pool" / tree / "file"

    @property
    def place(self) -> Place | None:
        return self.rig.world.places.get(self.id)

    async def sleep(self) -> None:
        told = await self.service.perform(PauseSandbox(sandbox=self.id, to_disk=True), ME)
        assert told.state is State.PAUSED

    async def state(self) -> State:
        return (await self.service.perform(GetSandbox(sandbox=self.id), ME)).state

    async def answers(self) -> bool:
        result = await self.service.perform(RunExec(sandbox=self.id, spec=HERE), ME)
        return result.stdout == "here\n" and [self.file(tree).read_text() for tree in (self.id, "ws_1")] == ["kept"] * 2

    async def woken(self) -> int:
        records = await self.service.perform(ListAudit(sandbox=self.id), ME)
        return sum(record.action == "sandbox.woken" for record in records)

    def left_half_way(self) -> None:
        """As a service that died on the way leaves the row of one that sleeps."""
        row = self.service.store.get(self.id)
        assert row is not None
        assert row.hibernated
        put(self.service, self.id, State.RESTORING)


@pytest.fixture
def over() -> OneWorkspace:
    return OneWorkspace()


def full(rig: Rig, monkeypatch: pytest.MonkeyPatch, names: Callable[[str], bool]) -> None:
    real = rig.pool.snapshot

    def snapshot(source: str, name: str, **options: Any) -> None:
        if names(name):
            raise ResourceExhaustedError(f"cannot copy tree {name!r}: No space left on device")
        real(source, name, **options)

    monkeypatch.setattr(rig.pool, "snapshot", snapshot)


async def test_asleep_it_holds_nothing_and_is_seen_by_all_who_look(rig: Rig, over: OneWorkspace) -> None:
    async with rig.service(workspaces=over, memory=True) as service:
        box = await Sleeper(rig, service).begin()
        before = rig.pool.names()
        await box.sleep()
        await box.sleep()
        assert (await service.perform(PauseSandbox(sandbox=box.id), ME)).state is State.PAUSED
        creates = rig.world.creates
        assert box.place is None
        assert [told.state for told in await service.perform(ListSandboxes(), ME)] == [State.PAUSED]
        assert (await service.perform(InspectSandbox(sandbox=box.id), ME)).sandbox.reason == "it sleeps on disk"
        assert (await service.perform(GetUsage(sandbox=box.id), ME)).memory_bytes == 0
        assert await service.perform(ListProcesses(sandbox=box.id), ME) == ()
        assert await service.perform(ListSnapshots(), ME) == ()
        assert await service.perform(ListSnapshots(sandbox=box.id), ME) == ()
        await service.recovery.sweep()
        assert rig.world.creates == creates
        assert await box.answers()
        assert (await box.state(), await box.woken()) == (State.RUNNING, 1)
        assert rig.pool.names() == before


@pytest.mark.parametrize("use", ["resume", "fork"])
async def test_it_wakes_for_what_needs_it(rig: Rig, over: OneWorkspace, use: str) -> None:
    async with rig.service(workspaces=over, memory=True) as service:
        box = await Sleeper(rig, service).begin()
        await box.sleep()
        actions = {"resume": ResumeSandbox(sandbox=box.id), "fork": ForkSandbox(sandbox=box.id)}
        await service.perform(actions[use], ME)  # type: ignore[arg-type]
        assert await box.state() is State.RUNNING


async def test_where_memory_cannot_be_written_it_says_what_can_be_done(rig: Rig) -> None:
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(), ME)
        with pytest.raises(UnsupportedError) as refused:
            await service.perform(PauseSandbox(sandbox=made.id, to_disk=True), ME)
        assert "without `to_disk`" in (refused.value.hint or "")
        assert (await service.perform(GetSandbox(sandbox=made.id), ME)).state is State.RUNNING


async def test_many_uses_at_once_wake_it_once(rig: Rig, over: OneWorkspace) -> None:
    async with rig.service(workspaces=over, memory=True) as service:
        box = await Sleeper(rig, service).begin()
        await box.sleep()
        creates = rig.world.creates
        uses = [service.perform(RunExec(sandbox=box.id, spec=HERE), ME) for _ in range(16)]
        assert {result.stdout for result in await asyncio.gather(*uses)} == {"here\n"}
        assert (rig.world.creates - creates, await box.woken()) == (1, 1)


async def test_two_who_put_it_to_sleep_at_once_both_find_it_asleep(rig: Rig, over: OneWorkspace) -> None:
    async with rig.service(workspaces=over, memory=True) as service:
        box = await Sleeper(rig, service).begin()
        action = PauseSandbox(sandbox=box.id, to_disk=True)
        told = await asyncio.gather(*(service.perform(action, ME) for _ in range(3)))
        assert [one.state for one in told] == [State.PAUSED] * 3
        assert await box.answers()
        assert {name for name in rig.pool.names() if name.startswith("sn_")} == set()


@pytest.mark.parametrize("which", ["", "_w"])
async def test_without_room_to_sleep_it_goes_on_as_it_was(
    rig: Rig, over: OneWorkspace, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    async with rig.service(workspaces=over, memory=True) as service:
        box = await Sleeper(rig, service).begin()
        trees, place = rig.pool.names(), box.place
        full(rig, monkeypatch, lambda name: name.startswith("sn_") and name.endswith(which))
        with pytest.raises(ResourceExhaustedError):
            await box.sleep()
        assert (box.place, await box.state(), rig.pool.names()) == (place, State.RUNNING, trees)
        assert await box.answers()


async def test_what_keeps_it_from_waking_leaves_it_asleep(
    rig: Rig, over: OneWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service(workspaces=over, memory=True) as service:
        box = await Sleeper(rig, service).begin()
        await box.sleep()
        trees = rig.pool.names()
        full(rig, monkeypatch, lambda name: name.startswith("rb_"))
        with pytest.raises(ResourceExhaustedError, match="No space left"):
            await box.answers()
        assert (await box.state(), rig.pool.names()) == (State.PAUSED, trees)
        monkeypatch.undo()

        def refuse(_: object) -> None:
            raise ResourceExhaustedError("no memory")

        rig.world.before_create = refuse
        with pytest.raises(ResourceExhaustedError, match="no memory"):
            await box.answers()
        assert (await box.state(), rig.pool.names()) == (State.PAUSED, trees)
        rig.world.before_create = None
        assert await box.answers()


async def test_it_sleeps_on_when_its_service_is_gone(rig: Rig, over: OneWorkspace) -> None:
    async with rig.service(workspaces=over, memory=True) as first:
        box = await Sleeper(rig, first).begin()
        await box.sleep()
    async with rig.service(workspaces=over, memory=True) as next:
        box.service = next
        await next.recovery.sweep()
        assert await box.state() is State.PAUSED
        assert await box.answers()


async def test_killed_asleep_it_leaves_nothing(rig: Rig, over: OneWorkspace) -> None:
    async with rig.service(workspaces=over, memory=True) as service:
        box = await Sleeper(rig, service).begin()
        await box.sleep()
        assert (await service.perform(KillSandbox(sandbox=box.id), ME)).state is State.KILLED
        with pytest.raises(SandboxDiedError):
            await box.answers()
        await until(lambda: set(rig.pool.names()) == {"tp_host", "bs_1", "ws_1"})


async def test_killed_while_it_wakes_it_stays_dead(rig: Rig, over: OneWorkspace) -> None:
    async with rig.service(workspaces=over, memory=True) as service:
        box = await Sleeper(rig, service).begin()
        await box.sleep()
        entered, go = asyncio.Event(), asyncio.Event()

        def wait(_: object) -> object:
            entered.set()
            return go.wait()

        rig.world.before_create = wait
        use = asyncio.ensure_future(box.answers())
        await entered.wait()
        await service.perform(KillSandbox(sandbox=box.id), ME)
        with pytest.raises(SandboxDiedError, match=f"killed by {ME.name}"):
            await use
        assert await box.state() is State.KILLED
        assert box.place is None
        await until(lambda: set(rig.pool.names()) == {"tp_host", "bs_1", "ws_1"})


@pytest.mark.parametrize("look", ["get", "use", "sweep"])
async def test_its_ttl_stands_still_and_its_retention_ends_it(rig: Rig, over: OneWorkspace, look: str) -> None:
    ahead, begun = [0.0], float(int(Clock().boottime()))  # whole seconds have exact differences
    clock = Clock(boottime=lambda: begun + ahead[0])  # else the second before the end could be over
    config = Config(paused_retention_days=0.25)
    rig.world.boottime = clock.boottime
    async with rig.service(workspaces=over, memory=True, clock=clock, config=config) as service:
        box = await Sleeper(rig, service).begin(ttl_seconds=300)
        ahead[0] = 100
        await box.sleep()
        told = await service.perform(GetSandbox(sandbox=box.id), ME)
        assert (told.left_seconds, told.kept_until) == (200, told.expires_at)
        ahead[0] = 99 + 6 * 3600
        assert await box.state() is State.PAUSED
        ahead[0] = 101 + 6 * 3600
        if look == "use":
            with pytest.raises(SandboxDiedError):
                await box.answers()
        elif look == "sweep":
            await service.recovery.sweep()
        told = await service.perform(GetSandbox(sandbox=box.id), ME)
        assert (told.state, told.limit) == (State.KILLED, Limit.RETENTION)
        assert (told.left_seconds, told.kept_until) == (None, None)
        await until(lambda: not [name for name in rig.pool.names() if name.startswith(("sb_", "sn_", "rb_"))])


@pytest.mark.parametrize("over_time", [False, True])
async def test_it_sleeps_through_a_restart_of_the_machine(rig: Rig, over: OneWorkspace, over_time: bool) -> None:
    ahead = [0.0]
    clock = Clock(wall=lambda: Clock().wall() + ahead[0])
    async with rig.service(workspaces=over, memory=True, clock=clock) as service:
        box = await Sleeper(rig, service).begin(ttl_seconds=300)
        await box.sleep()
        service.store.execute("UPDATE sandboxes SET boot_id = 'before', deadline = 1 WHERE id = ?", (box.id,))
        ahead[0] = 29 * 86_400
        if over_time:
            ahead[0] = 31 * 86_400
            assert await box.state() is State.KILLED
            return
        await service.recovery.sweep()
        assert await box.state() is State.PAUSED
        assert await box.answers()
        assert box.place is not None
        assert 290 < box.place.deadline - clock.boottime() <= 300
        row = service.store.get(box.id)
        assert row is not None
        assert row.boot_id != "before"


@pytest.mark.parametrize("by", ["recovery", "sweep", "use"])
@pytest.mark.parametrize("instance", [False, True])
async def test_what_a_daemon_that_died_had_begun_is_brought_to_sleep(
    rig: Rig, over: OneWorkspace, by: str, instance: bool
) -> None:
    async with rig.service(workspaces=over, memory=True) as service:
        box = await Sleeper(rig, service).begin()
        assert box.place is not None
        plan = box.place.plan
        await box.sleep()
        box.left_half_way()
        half_born = rig.world.places[box.id] = Place(plan, rig.state_dir)
        if not instance:
            await half_born.end(Ending(limit=None, reason="killed"))
        half_born.root = rig.state_dir / "world" / box.id
        half_born.root.mkdir(parents=True)
        (rig.state_dir / "pool" / f"rb_{box.id}").mkdir()
        if by != "use":
            await (service.recovery.sweep() if by == "sweep" else service.recovery.recover())
            assert await box.state() is State.PAUSED
            assert box.place is None
            assert not [name for name in rig.pool.names() if name.startswith("rb_")]
        assert await box.answers()
        assert half_born.ended is not None
        assert not [name for name in rig.pool.names() if name.startswith("rb_")]


async def test_what_cannot_be_ended_is_finished_by_the_next_who_looks(
    rig: Rig, over: OneWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service(workspaces=over, memory=True) as service:
        box = await Sleeper(rig, service).begin()

        async def fail(_: object) -> None:
            raise ResourceExhaustedError("no descriptors")

        monkeypatch.setattr("service_world.Held.kill", fail)
        with pytest.raises(ResourceExhaustedError):
            await box.sleep()
        monkeypatch.undo()
        assert box.place is not None
        assert not box.place.runs.is_set(), "what it does after the copy would be lost"
        assert await box.answers()
        assert await box.state() is State.RUNNING


async def test_it_is_paused_before_it_is_copied(rig: Rig, over: OneWorkspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A freeze ends with the supervisor; a pause outlives it."""
    async with rig.service(workspaces=over, memory=True) as service:
        box = await Sleeper(rig, service).begin()
        real, ran = rig.pool.snapshot, list[bool]()

        def snapshot(source: str, name: str, **options: Any) -> None:
            assert box.place is not None
            ran.append(box.place.runs.is_set())
            real(source, name, **options)

        monkeypatch.setattr(rig.pool, "snapshot", snapshot)
        await box.sleep()
        assert ran == [False, False]


async def test_who_loses_what_he_was_at_is_told_why(rig: Rig, over: OneWorkspace) -> None:
    async with rig.service(workspaces=over, memory=True) as service:
        box = await Sleeper(rig, service).begin()
        row = service.store.get(box.id)
        assert row is not None
        await box.sleep()
        error = await service.running.dead(row)
        assert "put to sleep on disk" in error.message
        assert await box.state() is State.PAUSED


async def test_nobody_deletes_what_it_sleeps_on(rig: Rig, over: OneWorkspace) -> None:
    from paddock.errors import NotFoundError

    async with rig.service(workspaces=over, memory=True) as service:
        box = await Sleeper(rig, service).begin()
        await box.sleep()
        (own,) = (name for name in rig.pool.names() if name.startswith("sn_") and not name.endswith("_w"))
        with pytest.raises(NotFoundError):
            await service.perform(DeleteSnapshot(snapshot=own), ME)
        assert await box.answers()
