"""Every step of create and kill broken, cancelled, unrecorded: afterwards there is a sandbox, or nothing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import service_world
from service_world import ME, Rig, until

from paddock.backends.base import Ending
from paddock.daemon.main.service import Service
from paddock.daemon.store.database import SnapshotStore
from paddock.errors import (
    PaddockError,
    ResourceExhaustedError,
    SandboxDiedError,
    SupervisorUnavailableError,
    UnrecordedError,
)
from paddock.model import (
    CreateSandbox,
    CreateSnapshot,
    DeleteWorkspace,
    ExecSpec,
    ExtendSandbox,
    GetSandbox,
    KillSandbox,
    Limit,
    ListAudit,
    ListSandboxes,
    ListSnapshots,
    OpenWorkspace,
    PauseSandbox,
    RunExec,
    SandboxSpec,
    State,
)


async def consistent(service: Service, rig: Rig) -> tuple[str, ...]:
    """The living, which are the same in the rows, in the world and in the pool."""
    rows = {s.id for s in await service.perform(ListSandboxes(), ME)}
    assert {i for i, p in rig.world.places.items() if p.ended is None} == rows
    await until(lambda: set(rig.pool.names()) == rows)
    return tuple(rows)


@pytest.mark.parametrize("steps", range(12))
async def test_a_create_cancelled_at_any_step_is_whole_or_nothing(rig: Rig, steps: int) -> None:
    async def slow(_: object) -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    rig.world.before_create = slow
    async with rig.service() as service:
        await service.perform(ListSandboxes(), ME)
        service.creation._built.add("host")  # no thread, so that steps are steps
        create = asyncio.ensure_future(service.perform(CreateSandbox(spec=SandboxSpec(name="n")), ME))
        for _ in range(steps):
            await asyncio.sleep(0)
        create.cancel()
        await asyncio.wait((create,))
        living = await consistent(service, rig)
        assert bool(living) is not create.cancelled()
        if create.cancelled():
            await service.perform(CreateSandbox(spec=SandboxSpec(name="n")), ME)


@pytest.mark.parametrize("method", ["add", "move", "get"])
@pytest.mark.parametrize("call", range(1, 4))
async def test_a_create_whose_database_fails_at_any_call_leaves_nothing_after_a_sweep(
    rig: Rig, method: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service() as service:
        _fail_at(monkeypatch, service.store, method, call, ResourceExhaustedError("disk full"))
        made: list[Any] = await asyncio.gather(service.perform(CreateSandbox(), ME), return_exceptions=True)
        monkeypatch.undo()
        if isinstance(made[0], BaseException):
            assert isinstance(made[0], PaddockError)
            assert {i for i, p in rig.world.places.items() if p.ended is None} == set()
            assert rig.pool.names() == ()
            assert await service.perform(ListSandboxes(), ME) == ()
        else:
            await consistent(service, rig)


@pytest.mark.parametrize("call", range(1, 6))
async def test_an_audit_log_that_fails_at_any_record_leaves_nothing_undone(
    rig: Rig, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of create and kill: no effect without a decision, no sandbox without an outcome."""
    async with rig.service() as service:
        _fail_at(monkeypatch, service._audit, "_write", call, UnrecordedError("disk full"))
        made = await asyncio.gather(service.perform(CreateSandbox(), ME), return_exceptions=True)
        monkeypatch.undo()
        living = await consistent(service, rig)
        assert bool(living) is not isinstance(made[0], BaseException)
        assert rig.world.creates == (0 if call == 1 else 1)


async def test_a_kill_that_fails_leaves_a_sandbox_that_can_be_used_and_killed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service_world import Held

    async with rig.service() as service:
        made = await service.perform(CreateSandbox(), ME)

        async def broken(_: object) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(Held, "kill", broken)
        with pytest.raises(OSError):
            await service.perform(KillSandbox(sandbox=made.id), ME)
        monkeypatch.undo()
        result = await service.perform(RunExec(sandbox=made.id, spec=ExecSpec(argv=("echo", "here"))), ME)
        assert result.stdout == "here\n"
        killed = await service.perform(KillSandbox(sandbox=made.id), ME)
        assert killed.state is State.KILLED
        assert await consistent(service, rig) == ()


async def test_an_undo_that_fails_does_not_hide_the_cause_nor_stop_the_rest(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service() as service:

        def broken(_: object) -> None:
            raise ZeroDivisionError

        def cannot(_: str) -> None:
            raise OSError(5, "Input/output error")

        rig.world.before_create = broken
        monkeypatch.setattr(rig.pool, "delete", cannot)
        with pytest.raises(ZeroDivisionError) as caught:
            await service.perform(CreateSandbox(), ME)
        assert "undoing it failed" in caught.value.__notes__[0]
        monkeypatch.undo()
        (row,) = await service.perform(ListSandboxes(ended=True), ME)
        assert row.state is State.FAILED
        await service.recovery.sweep()
        assert rig.pool.names() == ()


async def test_a_failure_that_cannot_be_written_down_is_found_by_the_next_sweep(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service() as service:

        def cannot(*_: object, **__: object) -> None:
            raise ResourceExhaustedError("disk full")

        monkeypatch.setattr(service.store, "move", cannot)
        with pytest.raises(ResourceExhaustedError) as caught:
            await service.perform(CreateSandbox(spec=SandboxSpec(name="n")), ME)
        assert "could not be recorded" in caught.value.__notes__[0]
        monkeypatch.undo()
        await service.recovery.sweep()
        (seen,) = await service.perform(ListSandboxes(ended=True), ME)
        assert seen.state is State.FAILED
        await service.perform(CreateSandbox(spec=SandboxSpec(name="n")), ME)


async def test_a_closed_backend_connection_is_made_anew(rig: Rig) -> None:
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(), ME)
        await service.running.release(made.id)
        result = await service.perform(RunExec(sandbox=made.id, spec=ExecSpec(argv=("echo", "again"))), ME)
        assert result.stdout == "again\n"


async def test_one_that_dies_while_it_is_taken_over_is_said_to_have_died_and_of_what(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service_world import Held

    async with rig.service() as service:
        made = await service.perform(CreateSandbox(spec=SandboxSpec(persistent=True)), ME)
    async with rig.service() as service:

        async def die(held: Held, *_: Any, **__: Any) -> None:
            await rig.world.places[held.id].end(Ending(limit=Limit.MEMORY, reason="memory ran out"))
            raise SandboxDiedError(f"{held.id} is dead")

        monkeypatch.setattr(Held, "start", die)
        with pytest.raises(SandboxDiedError, match="memory ran out") as caught:
            await service.perform(RunExec(sandbox=made.id, spec=ExecSpec(argv=("true",))), ME)
        assert caught.value.details["limit"] == "memory"
        assert await consistent(service, rig) == ()


def _fail_at(monkeypatch: pytest.MonkeyPatch, owner: object, method: str, call: int, error: Exception) -> None:
    real, calls = getattr(owner, method), [0]

    def counted(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            raise error
        return real(*arguments, **options)

    monkeypatch.setattr(owner, method, counted)


@pytest.mark.parametrize("at", ["copy", "outcome"])
async def test_a_snapshot_that_cannot_be_deleted_on_a_full_disk_goes_with_the_next_sweep(
    rig: Rig, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(), ME)

        def full(*_: object, **__: object) -> None:
            raise ResourceExhaustedError("disk full")

        monkeypatch.setattr(SnapshotStore, "remove", full)
        if at == "copy":
            monkeypatch.setattr(rig.pool, "snapshot", full)
        else:
            monkeypatch.setattr(service._audit, "outcome", full)
        with pytest.raises(ResourceExhaustedError):
            await service.perform(CreateSnapshot(sandbox=made.id), ME)
        await service.recovery.sweep()
        monkeypatch.undo()
        await service.recovery.sweep()
        assert await service.perform(ListSnapshots(), ME) == ()
        assert service.store.execute("SELECT count(*) FROM snapshots", ()).fetchone() == (0,)
        assert rig.pool.names() == (made.id,)


async def test_a_snapshot_whose_undoing_a_kill_cancels_goes_with_the_next_sweep(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(), ME)
        begun, go, loop, delete = asyncio.Event(), threading.Event(), asyncio.get_running_loop(), rig.pool.delete

        def full(*_: object, **__: object) -> None:
            raise ResourceExhaustedError("disk full")

        def slowly(name: str) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert go.wait(60)
            delete(name)

        monkeypatch.setattr(SnapshotStore, "remove", full)
        monkeypatch.setattr(rig.pool, "snapshot", full)
        monkeypatch.setattr(rig.pool, "delete", slowly)
        snapshot = asyncio.ensure_future(service.perform(CreateSnapshot(sandbox=made.id), ME))
        await begun.wait()
        killing = asyncio.ensure_future(service.perform(KillSandbox(sandbox=made.id), ME))
        for _ in range(20):
            await asyncio.sleep(0)
        go.set()
        await killing
        with pytest.raises(SandboxDiedError):
            await snapshot
        monkeypatch.undo()
        await service.recovery.sweep()
        assert service.store.execute("SELECT count(*) FROM snapshots", ()).fetchone() == (0,)


async def test_an_end_on_a_full_disk_is_told_at_once_and_recorded_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(), ME)

        def full(*_: object, **__: object) -> None:
            raise ResourceExhaustedError("disk full")

        monkeypatch.setattr(service.store, "move", full)
        await rig.world.places[made.id].end(Ending(limit=Limit.MEMORY, reason="too much"))
        for _ in range(3):
            await service.recovery.sweep()
            told = await service.perform(GetSandbox(sandbox=made.id), ME)
            assert (told.state, told.limit, told.reason) == (State.KILLED, Limit.MEMORY, "too much")
        monkeypatch.undo()
        assert await service.perform(ListSandboxes(), ME) == ()
        records = await service.perform(ListAudit(sandbox=made.id), ME)
        assert sum(record.action == "sandbox.ended" for record in records) == 1


@pytest.mark.parametrize("died", ["daemon", "supervisor"])
async def test_an_extension_that_is_broken_off_holds_as_it_is_recorded(
    rig: Rig, died: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, never = asyncio.Event(), asyncio.Event()

    async def hang(_: object, deadline: float) -> None:
        reached.set()
        await never.wait()

    async def fail(*_: object) -> None:
        raise SupervisorUnavailableError("it has just died")

    async with rig.service() as service:
        made = await service.perform(CreateSandbox(spec=SandboxSpec(ttl_seconds=100)), ME)
        place = rig.world.places[made.id]
        with monkeypatch.context() as broken:
            broken.setattr(service_world.Held, "set_deadline", hang if died == "daemon" else fail)
            extension = asyncio.ensure_future(service.perform(ExtendSandbox(sandbox=made.id, ttl_seconds=1000), ME))
            if died == "supervisor":
                with pytest.raises(SupervisorUnavailableError):
                    await extension
                place.deadline += 900  # as if it had been done, and the answer lost
            else:
                await reached.wait()
                broken.undo()  # first: the successor tells the sandbox its deadline as soon as it adopts it
                async with rig.service() as successor:
                    await successor.perform(RunExec(sandbox=made.id, spec=ExecSpec(argv=("true",))), ME)
        await service.perform(RunExec(sandbox=made.id, spec=ExecSpec(argv=("true",))), ME)
        row = service.store.get(made.id)
        assert row is not None
        assert abs(place.deadline - row.deadline) < 1
        assert abs(row.sandbox.expires_at - made.expires_at - (0 if died == "supervisor" else 900)) < 30
        extension.cancel()
        never.set()


async def test_the_end_of_what_sleeps_on_disk_waits_until_it_can_be_recorded(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row alone says that it lives: its files go after that says otherwise."""
    async with rig.service(memory=True) as service:
        made = await service.perform(CreateSandbox(), ME)
        await service.perform(PauseSandbox(sandbox=made.id, to_disk=True), ME)

        def full(*_: object, **__: object) -> None:
            raise ResourceExhaustedError("disk full")

        monkeypatch.setattr(service.store, "move", full)
        for _ in range(2):
            with pytest.raises(ResourceExhaustedError):
                await service.sandboxes.end(made.id)
        with pytest.raises(ResourceExhaustedError):
            await service.perform(KillSandbox(sandbox=made.id), ME)
        monkeypatch.undo()
        result = await service.perform(RunExec(sandbox=made.id, spec=ExecSpec(argv=("echo", "here"))), ME)
        assert result.stdout == "here\n"
        await service.perform(PauseSandbox(sandbox=made.id, to_disk=True), ME)
        await service.sandboxes.end(made.id)
        await until(lambda: rig.pool.names() == ())
        records = await service.perform(ListAudit(sandbox=made.id), ME)
        assert sum(record.action == "sandbox.ended" for record in records) == 1


async def test_a_deletion_of_a_workspace_whose_caller_leaves_goes_to_its_end(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service() as service:
        made = await service.perform(OpenWorkspace(name="task"), ME)
        real, begun, go = rig.pool.delete, threading.Event(), threading.Event()

        def slowly(name: str) -> None:
            begun.set()
            assert go.wait(60)
            real(name)

        monkeypatch.setattr(rig.pool, "delete", slowly)
        deletion = asyncio.ensure_future(service.perform(DeleteWorkspace(workspace="task", discard=True), ME))
        assert await asyncio.to_thread(begun.wait, 60)
        deletion.cancel()
        opening = asyncio.ensure_future(service.perform(OpenWorkspace(name="task"), ME))
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await deletion
        assert (await opening).id != made.id
