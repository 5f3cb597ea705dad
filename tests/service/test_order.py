"""The order of verbs on one sandbox: what runs delays nothing, a kill passes everything, what is undone is gone."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import service_world
from service_world import ME, Rig, until

from paddock.daemon import lanes
from paddock.daemon.main.service import Service
from paddock.daemon.sandboxes import sandboxes
from paddock.errors import SandboxDiedError
from paddock.model import (
    CreateSandbox,
    CreateSnapshot,
    ExecResult,
    ExecSpec,
    ExtendSandbox,
    ForkSandbox,
    GetSandbox,
    KillSandbox,
    ListExecs,
    ListSandboxes,
    PauseSandbox,
    RunExec,
    SandboxSpec,
    StartExec,
    State,
)

HOUR = ExecSpec(argv=("sleep", "3600"))
BESIDE: dict[str, Any] = {
    "pause": lambda sandbox: PauseSandbox(sandbox=sandbox, force=True),
    "snapshot": CreateSnapshot,
    "fork": ForkSandbox,
    "extend": lambda sandbox: ExtendSandbox(sandbox=sandbox, ttl_seconds=60),
    "kill": KillSandbox,
}


@pytest.mark.parametrize("verb", BESIDE)
async def test_a_command_of_an_hour_delays_no(rig: Rig, verb: str) -> None:
    rig.pool.create("tp_host")
    async with rig.service() as service:
        id = (await service.perform(CreateSandbox(), ME)).id
        run = asyncio.ensure_future(service.perform(RunExec(sandbox=id, spec=HOUR), ME))
        handle = await service.perform(StartExec(sandbox=id, spec=HOUR), ME)
        await until(lambda: len(rig.world.places[id].commands) == 2)
        async with asyncio.timeout(60):
            await service.perform(BESIDE[verb](sandbox=id), ME)
        assert verb == "kill" or not run.done()
        await service.perform(KillSandbox(sandbox=id), ME)
        assert (await run).signal == 9
        await handle.aclose()


@pytest.mark.parametrize("verb", ["look", "extend"])
async def test_a_snapshot_that_is_under_way_delays_no(rig: Rig, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig.service() as service:
        id = (await service.perform(CreateSandbox(), ME)).id
        begun, go, loop, copy = asyncio.Event(), threading.Event(), asyncio.get_running_loop(), rig.pool.snapshot

        def slowly(source: str, name: str, **options: Any) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert go.wait(60)
            copy(source, name, **options)

        monkeypatch.setattr(rig.pool, "snapshot", slowly)
        snapshot = asyncio.ensure_future(service.perform(CreateSnapshot(sandbox=id), ME))
        await begun.wait()
        try:
            action: Any = ListSandboxes() if verb == "look" else ExtendSandbox(sandbox=id, ttl_seconds=60)
            await service.perform(action, ME)
            assert not snapshot.done()
        finally:
            go.set()
        await snapshot


class Starts:
    """Holds each command before it starts, until `go`; notes the sandbox and argument of each in `begun`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[tuple[str, str]] = []
        self.go, start = asyncio.Event(), service_world.Held.start

        async def slowly(held: service_world.Held, spec: ExecSpec, **options: Any) -> service_world.Command:
            self.begun.append((held.id, spec.argv[-1]))
            await self.go.wait()
            return await start(held, spec, **options)

        monkeypatch.setattr(service_world.Held, "start", slowly)
        monkeypatch.setattr(sandboxes, "_TURN_SECONDS", 3600.0)

    def of(self, sandbox: str) -> list[str]:
        return [argument for id, argument in self.begun if id == sandbox]


async def _turns() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


async def _beside(service: Service) -> str:
    """A sandbox that was in use a moment ago."""
    other = (await service.perform(CreateSandbox(), ME)).id
    await service.perform(RunExec(sandbox=other, spec=ExecSpec(argv=("echo", "on"))), ME)
    return other


def _ask(service: Service, sandbox: str) -> tuple[list[asyncio.Task[ExecResult]], list[str]]:
    arguments = [str(number) for number in range(10)]
    runs = [
        asyncio.ensure_future(service.perform(RunExec(sandbox=sandbox, spec=ExecSpec(argv=("echo", one))), ME))
        for one in arguments
    ]
    return runs, arguments


async def _flood(service: Service, sandbox: str, starts: Starts) -> tuple[list[asyncio.Task[ExecResult]], list[str]]:
    """Ask for many commands. Return when the one that may is about to start."""
    runs, arguments = _ask(service, sandbox)
    await until(lambda: starts.begun)
    await _turns()  # in which others would begin
    assert starts.of(sandbox) == arguments[:1]
    return runs, arguments


async def test_while_others_are_in_use_the_commands_of_one_sandbox_take_turns_and_no_other_sandbox_waits(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service() as service:
        floods, other = (await service.perform(CreateSandbox(), ME)).id, await _beside(service)
        starts = Starts(monkeypatch)
        runs, arguments = await _flood(service, floods, starts)
        beside = asyncio.ensure_future(service.perform(RunExec(sandbox=other, spec=ExecSpec(argv=("echo", "on"))), ME))
        await until(lambda: starts.of(other) == ["on"])
        runs[1].cancel()  # one that leaves gives its place to the next
        starts.go.set()
        done = await asyncio.gather(*runs, return_exceptions=True)
        assert isinstance(done.pop(1), asyncio.CancelledError)
        del arguments[1]
        assert [result.stdout for result in done if isinstance(result, ExecResult)] == [f"{one}\n" for one in arguments]
        assert starts.of(floods) == arguments
        assert (await beside).stdout == "on\n"


async def test_the_commands_of_the_only_sandbox_in_use_start_at_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig.service() as service:
        id = (await service.perform(CreateSandbox(), ME)).id
        starts = Starts(monkeypatch)
        runs, arguments = _ask(service, id)
        await until(lambda: starts.of(id) == arguments)
        starts.go.set()
        assert [(await run).stdout for run in runs] == [f"{one}\n" for one in arguments]


async def test_commands_that_run_or_whose_start_hangs_keep_no_other_from_its_start(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service() as service:
        id, _ = (await service.perform(CreateSandbox(), ME)).id, await _beside(service)
        hour = [asyncio.ensure_future(service.perform(RunExec(sandbox=id, spec=HOUR), ME)) for _ in range(3)]
        await until(lambda: len(rig.world.places[id].commands) == len(hour))
        starts = Starts(monkeypatch)
        monkeypatch.setattr(sandboxes, "_TURN_SECONDS", 0.0)
        runs, arguments = _ask(service, id)
        await until(lambda: starts.of(id) == arguments)
        starts.go.set()
        assert [(await run).stdout for run in runs] == [f"{one}\n" for one in arguments]
        await service.perform(KillSandbox(sandbox=id), ME)
        await asyncio.gather(*hour, return_exceptions=True)


@pytest.mark.parametrize("verb", ["pause", "kill"])
async def test_commands_that_wait_for_their_turn_delay_no(verb: str, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig.service() as service:
        id, _ = (await service.perform(CreateSandbox(), ME)).id, await _beside(service)
        starts = Starts(monkeypatch)
        runs, arguments = await _flood(service, id, starts)
        ask = asyncio.ensure_future(service.perform(BESIDE[verb](sandbox=id), ME))
        if verb == "kill":
            assert (await ask).state is State.KILLED
            starts.go.set()
            for run in runs:
                with pytest.raises(SandboxDiedError):
                    await run
            assert starts.of(id) == arguments[:1]
        else:
            ask.add_done_callback(lambda _: starts.begun.append((id, "paused")))
            await _turns()  # in which it queues
            starts.go.set()
            assert [(await run).stdout for run in runs] == [f"{one}\n" for one in arguments]  # they wake it
            assert starts.of(id)[1] == "paused"


def _under_way(rig: Rig) -> asyncio.Event:
    """A create that comes to no end by itself, and whether it has begun."""
    entered = asyncio.Event()

    def wait(_: object) -> object:
        entered.set()
        return asyncio.Event().wait()

    rig.world.before_create = wait
    return entered


async def test_a_kill_during_a_create_undoes_it_and_both_say_so(rig: Rig) -> None:
    async with rig.service() as service:
        entered = _under_way(rig)
        create = asyncio.ensure_future(service.perform(CreateSandbox(spec=SandboxSpec(name="n")), ME))
        await entered.wait()
        killed = await service.perform(KillSandbox(sandbox="n"), ME)
        assert (killed.state, killed.reason) == (State.KILLED, f"killed by {ME.name}")
        with pytest.raises(SandboxDiedError, match=f"killed by {ME.name}"):
            await create
        assert rig.pool.names() == ()
        rig.world.before_create = None
        await service.perform(CreateSandbox(spec=SandboxSpec(name="n")), ME)


async def test_a_create_whose_caller_leaves_undoes_itself_and_a_pause_that_waited_finds_it_ended(rig: Rig) -> None:
    async with rig.service() as service:
        entered = _under_way(rig)
        create = asyncio.ensure_future(service.perform(CreateSandbox(spec=SandboxSpec(name="n")), ME))
        await entered.wait()
        pause = asyncio.ensure_future(service.perform(PauseSandbox(sandbox="n"), ME))
        await asyncio.sleep(0)
        create.cancel()
        with pytest.raises(asyncio.CancelledError):
            await create
        with pytest.raises(SandboxDiedError):
            await pause
        (seen,) = await service.perform(ListSandboxes(ended=True), ME)
        assert seen.state is State.FAILED
        assert rig.pool.names() == ()


async def test_who_uses_it_while_it_is_killed_is_told_by_whom(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig.service() as service:
        id = (await service.perform(CreateSandbox(), ME)).id
        begun, go, kill = asyncio.Event(), asyncio.Event(), service_world.Held.kill

        async def slowly(held: service_world.Held) -> None:
            begun.set()
            await go.wait()
            await kill(held)

        monkeypatch.setattr(service_world.Held, "kill", slowly)
        killing = asyncio.ensure_future(service.perform(KillSandbox(sandbox=id), ME))
        await begun.wait()
        uses = [
            asyncio.ensure_future(service.perform(action, ME))
            for action in (RunExec(sandbox=id, spec=HOUR), PauseSandbox(sandbox=id), ListExecs(sandbox=id))
        ]
        await asyncio.sleep(0)
        assert (await service.perform(GetSandbox(sandbox=id), ME)).state is State.RUNNING  # looks wait for nothing
        go.set()
        await killing
        for use in uses:
            with pytest.raises(SandboxDiedError, match=f"killed by {ME.name}"):
                await use


async def test_who_looks_between_the_end_and_its_record_is_told_by_whom_too(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service() as service:
        id = (await service.perform(CreateSandbox(), ME)).id
        ended, go, kill = asyncio.Event(), asyncio.Event(), service_world.Held.kill

        async def slowly(held: service_world.Held) -> None:
            await kill(held)
            ended.set()
            await go.wait()

        monkeypatch.setattr(service_world.Held, "kill", slowly)
        killing = asyncio.ensure_future(service.perform(KillSandbox(sandbox=id), ME))
        await ended.wait()
        seen = await service.perform(GetSandbox(sandbox=id), ME)
        go.set()
        assert [one.reason for one in (seen, await killing)] == [f"killed by {ME.name}"] * 2


async def test_a_kill_does_not_wait_for_ever_for_what_hangs(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig.service() as service:
        id = (await service.perform(CreateSandbox(), ME)).id
        monkeypatch.setattr(lanes, "PATIENCE_SECONDS", 0.01)
        begun, go, loop, copy = asyncio.Event(), threading.Event(), asyncio.get_running_loop(), rig.pool.snapshot

        def hangs(source: str, name: str, **options: Any) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert go.wait(60)
            copy(source, name, **options)

        monkeypatch.setattr(rig.pool, "snapshot", hangs)
        snapshot = asyncio.ensure_future(service.perform(CreateSnapshot(sandbox=id), ME))
        await begun.wait()
        try:
            assert (await service.perform(KillSandbox(sandbox=id), ME)).state is State.KILLED
            assert not snapshot.done()
        finally:
            go.set()
        with pytest.raises(
            (SandboxDiedError, FileNotFoundError)
        ):  # the folders of this world say so of a tree that is gone
            await snapshot
        await service.recovery.sweep()
        assert rig.pool.names() == ()
