from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from service_world import ME, Command, Rig, WorldBackend, until

from paddock.backends.base import Ending, KeptExec
from paddock.backends.pump import Flow, Pump, pour
from paddock.daemon.main.service import Service
from paddock.daemon.sandboxes import execs
from paddock.errors import (
    InvalidArgumentError,
    InvalidStateError,
    NotFoundError,
    ProgramNotFoundError,
    SandboxDiedError,
    SupervisorUnavailableError,
)
from paddock.linux.proc import start_time
from paddock.model import (
    AttachExec,
    ByteReader,
    CreateSandbox,
    ExecId,
    ExecResult,
    ExecSpec,
    IdPrefix,
    KillSandbox,
    Limit,
    Limits,
    ListAudit,
    ListExecs,
    RunExec,
    SandboxId,
    SandboxSpec,
    SignalExec,
    StartExec,
    mint,
)
from paddock.model.caller import SESSION, SessionProcess


def sh(script: str, **fields: Any) -> ExecSpec:
    return ExecSpec(argv=("sh", "-c", script), **fields)


async def make(service: Service, **limits: Any) -> SandboxId:
    return (await service.perform(CreateSandbox(spec=SandboxSpec(limits=Limits(**limits))), ME)).id


async def run(service: Service, sandbox: str, script: str, **fields: Any) -> ExecResult:
    extra = {k: fields.pop(k) for k in ("input", "capture_bytes") if k in fields}
    return await service.perform(RunExec(sandbox=sandbox, spec=sh(script, **fields), **extra), ME)


async def test_a_command_is_run_with_its_input_and_both_streams_are_kept_apart(rig: Rig) -> None:
    async with rig.service() as service:
        id = await make(service)
        result = await run(service, id, "cat; echo err >&2; exit 3", input=b"x" * 500_000)
        assert (result.status.code, result.stderr, result.limit) == (3, "err\n", None)
        assert result.out.head + result.out.tail == b"x" * 500_000
        assert result.out.file is None
        assert not (rig.state_dir / "outputs").exists()


async def test_without_input_stdin_is_at_its_end_even_if_the_spec_wants_a_pipe(rig: Rig) -> None:
    async with rig.service() as service:
        id = await make(service)
        assert (await run(service, id, "cat; echo done", stdin=True)).stdout == "done\n"


async def test_input_that_nobody_reads_is_no_error(rig: Rig) -> None:
    async with rig.service() as service:
        id = await make(service)
        assert (await run(service, id, "exec 0<&-; echo ok", input=b"x" * 1_000_000)).stdout == "ok\n"


@pytest.mark.parametrize("capture", [0, 1, 1000, 1001])
async def test_what_is_left_out_of_a_result_is_all_in_its_file(rig: Rig, capture: int) -> None:
    async with rig.service() as service:
        id = await make(service)
        result = await run(service, id, "seq 1 60000; echo short >&2", capture_bytes=capture)
        whole = "".join(f"{i}\n" for i in range(1, 60_001)).encode()
        assert result.out.total_bytes == len(whole)
        assert result.out.file is not None
        file = Path(result.out.file)
        assert os.stat(file).st_mode & 0o777 == 0o600
        assert digest_of(file) == hashlib.sha256(whole).hexdigest()
        assert len(result.out.head) == (capture + 1) // 2
        assert len(result.out.tail) == capture // 2
        assert whole.startswith(result.out.head)
        assert whole.endswith(result.out.tail)
        await service.perform(KillSandbox(sandbox=id), ME)
        await until(lambda: digest_of(file) is None)


async def test_kept_outputs_take_no_more_of_the_host_than_the_sandbox_may_of_its_disk(rig: Rig) -> None:
    async with rig.service() as service:
        id = await make(service, disk_mib=1, output_mib=1)
        results = [await run(service, id, "head -c 400000 /dev/zero", capture_bytes=9) for _ in range(3)]
        files = [result.out.file for result in results]
        assert [file is not None for file in files] == [True, True, False]
        assert {result.out.total_bytes for result in results} == {400_000}
        assert {path.stat().st_size for path in (rig.state_dir / "outputs" / id).iterdir()} == {400_000}
        small = await run(service, id, "head -c 200000 /dev/zero", capture_bytes=9)
        assert small.out.file is not None, "what the third had taken was given back"
    async with rig.service() as service:
        later = await run(service, id, "head -c 400000 /dev/zero", capture_bytes=9)
        assert later.out.file is None, "a daemon counts what an earlier one has kept"


async def test_output_of_exactly_the_capture_is_whole_and_has_no_file(rig: Rig) -> None:
    async with rig.service() as service:
        id = await make(service)
        result = await run(service, id, "printf 0123456789", capture_bytes=10)
        assert result.stdout == "0123456789"
        assert result.out.file is None


async def test_a_timeout_ends_the_whole_tree_and_keeps_what_was_printed(rig: Rig) -> None:
    async with rig.service() as service:
        id = await make(service)
        result = await run(service, id, "echo before; sleep 1000 & echo $!; wait; echo after", timeout_seconds=3)
        assert result.limit is Limit.TIME
        before, pid = result.stdout.split()
        assert before == "before"
        await until(lambda: not _runs(int(pid)))


async def test_too_much_output_ends_the_command_and_says_so(rig: Rig) -> None:
    async with rig.service() as service:
        id = await make(service, output_mib=1)
        result = await run(service, id, "yes", timeout_seconds=60)
        assert result.limit is Limit.OUTPUT
        assert result.out.total_bytes == 1 << 20
        assert result.signal == signal.SIGKILL


async def test_a_daemon_that_holds_the_streams_does_not_hold_the_result(rig: Rig) -> None:
    async with rig.service() as service:
        id = await make(service)
        result = await run(service, id, "sleep 1000 & echo started")
        assert (result.stdout, result.limit) == ("started\n", None)


@pytest.mark.parametrize(
    ("strikes", "disk_bytes", "script", "limit"),
    [
        ({Limit.MEMORY: 1}, None, "kill -9 $$", Limit.MEMORY),
        ({Limit.PROCESSES: 3}, None, "exit 2", Limit.PROCESSES),
        ({Limit.MEMORY: 1, Limit.PROCESSES: 1}, None, "exit 2", Limit.MEMORY),
        ({}, (16 << 20) - 4096, "exit 1", Limit.DISK),
        ({}, -1, "exit 1", Limit.DISK),
        ({Limit.DISK: 1}, None, "exit 1", Limit.DISK),
        ({}, None, "echo 'x: Too many open files' >&2; exit 1", Limit.OPEN_FILES),
        ({}, None, "echo 'x: File too large' >&2; exit 1", Limit.DISK),
        ({}, 0, "kill -9 $$", None),
        ({Limit.MEMORY: 1}, None, "exit 0", None),
    ],
)
async def test_a_failed_command_names_the_limit_that_it_exceeded(
    rig: Rig, tmp_path: Path, strikes: dict[Limit, int], disk_bytes: int | None, script: str, limit: Limit | None
) -> None:
    async with rig.service() as service:
        id = await make(service, disk_mib=16)
        place = rig.world.places[id]  # pyright: ignore
        place.disk_bytes = disk_bytes
        if disk_bytes == -1:  # it is for the pool to tell
            place.disk_bytes, rig.pool.used_bytes = None, 16 << 20
        os.mkfifo(tmp_path / "go")
        command = asyncio.ensure_future(run(service, id, f"read _ <{tmp_path}/go; {script}"))
        await until(lambda: place.commands)
        place.strikes = strikes
        await asyncio.to_thread((tmp_path / "go").write_text, "\n")
        assert (await command).limit is limit
        assert place.usage_asked == (0 if script == "exit 0" else 1 + bool(disk_bytes))
        # What struck is no later command's.
        if strikes:
            assert (await run(service, id, "exit 1")).limit is None


@pytest.mark.parametrize("script", ["kill -XFSZ $$", "exit 153"])
async def test_a_file_that_met_its_limit_names_disk(rig: Rig, script: str) -> None:
    async with rig.service() as service:
        assert (await run(service, await make(service), script)).limit is Limit.DISK


async def test_a_cancelled_run_kills_the_command_and_is_recorded(rig: Rig) -> None:
    async with rig.service() as service:
        id = await make(service)
        task = asyncio.ensure_future(run(service, id, "sleep 1000"))
        place = rig.world.places[id]  # pyright: ignore
        await until(lambda: place.commands)
        (command,) = place.commands.values()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not _runs(command.pid)
        assert outcomes(rig, "exec.run")[-1]["error"] == "cancelled"


async def test_a_sandbox_that_dies_under_a_command_says_why(rig: Rig) -> None:
    async with rig.service() as service:
        id = await make(service)
        place = rig.world.places[id]  # pyright: ignore
        handle = await service.perform(StartExec(sandbox=id, spec=sh("sleep 1000")), ME)
        await place.end(Ending(limit=Limit.TTL, reason="its time was over"))
        await handle.wait()
        with pytest.raises(SandboxDiedError, match="its time was over"):
            await run(service, id, "true")


async def test_a_started_command_keeps_timeout_output_limit_and_record(rig: Rig) -> None:
    async with rig.service() as service:
        id = await make(service, output_mib=1)
        slow = await service.perform(StartExec(sandbox=id, spec=sh("echo hi; sleep 1000", timeout_seconds=3)), ME)
        assert slow.stdout is not None
        assert await slow.stdout.read() == b"hi\n"
        assert (await slow.wait()).limit is Limit.TIME
        await slow.aclose()
        loud = await service.perform(StartExec(sandbox=id, spec=sh("yes")), ME)
        assert loud.stdout is not None
        while await loud.stdout.read(1 << 16):
            pass
        assert (await loud.wait()).limit is Limit.OUTPUT
        await loud.aclose()
        limits = [o["detail"]["status"]["limit"] for o in outcomes(rig, "exec.start")]
        assert limits == ["time", "output"]


async def test_what_the_pump_moves_keeps_the_output_limit_and_is_recorded(rig: Rig) -> None:
    async with rig.service() as service:
        id = await make(service, output_mib=1)
        handle = await service.perform(StartExec(sandbox=id, spec=sh("yes")), ME)
        assert handle.stdout is not None
        passed = await moved(handle.stdout)
        assert (await handle.wait()).limit is Limit.OUTPUT
        await handle.aclose()
        assert len(passed) > 1 << 20
        lines = [line for p in (rig.state_dir / "audit").glob("*.jsonl") for line in p.read_text().splitlines()]
        told = [one["detail"]["out"] for line in lines if "out" in (one := json.loads(line)).get("detail", {})]
        # The last one is of the handle's end, when more has passed since the command ended.
        assert told[-1] == {"sha256": hashlib.sha256(passed).hexdigest(), "length": len(passed)}


async def test_a_limit_that_only_the_program_names_is_found_in_what_the_pump_moved(rig: Rig) -> None:
    async with rig.service() as service:
        id = await make(service)
        script = "echo 'x: Too many open files' >&2; exit 1"
        handle = await service.perform(StartExec(sandbox=id, spec=sh(script)), ME)
        assert handle.stderr is not None
        moving = asyncio.ensure_future(moved(handle.stderr))
        assert (await handle.wait()).limit is Limit.OPEN_FILES
        await moving
        await handle.aclose()


async def left_running(rig: Rig, id: SandboxId, exec: ExecId) -> Command:
    """A command that a daemon which left has kept."""
    async with rig.service() as service:
        running = asyncio.ensure_future(service.perform(RunExec(sandbox=id, spec=sh("sleep 1000"), id=exec), ME))
        await until(lambda: exec in rig.world.places[id].commands and rig.world.places[id].commands[exec].kept)
        service.execs.leaves = True
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    return rig.world.places[id].commands[exec]


async def test_a_command_is_taken_up_by_the_caller_who_asks_again(rig: Rig) -> None:
    async with rig.service() as service:
        id = await make(service)
    exec = ExecId(mint(IdPrefix.EXEC))
    command = await left_running(rig, id, exec)
    async with rig.service() as service:
        assert exec in service.execs.kept
        again = asyncio.ensure_future(service.perform(RunExec(sandbox=id, spec=sh("exit 1"), id=exec), ME))
        await command.kill()
        assert (await again).status.signal == signal.SIGKILL
        assert exec not in service.execs.kept


@pytest.mark.parametrize("when", ["a caller asks again", "a sweep comes"])
async def test_what_was_kept_is_learned_once_the_supervisor_answers(
    rig: Rig, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.service() as service:
        id = await make(service)
    exec, own = (ExecId(mint(IdPrefix.EXEC)) for _ in range(2))
    await left_running(rig, id, exec)
    kept, hangs = WorldBackend.kept, [True]

    async def late(self: WorldBackend) -> dict[ExecId, KeptExec]:
        if hangs:
            raise SupervisorUnavailableError("it hangs")
        return await kept(self)

    monkeypatch.setattr(WorldBackend, "kept", late)
    async with rig.service() as service:
        running = asyncio.ensure_future(service.perform(RunExec(sandbox=id, spec=sh("sleep 1000"), id=own), ME))
        await until(lambda: own in rig.world.places[id].commands and rig.world.places[id].commands[own].kept)
        assert not await service.execs.is_kept(exec)
        hangs.clear()
        if when == "a sweep comes":
            await service.recovery.sweep()
            assert exec in service.execs.kept
        assert await service.execs.is_kept(exec)
        assert not await service.execs.is_kept(own), "this daemon keeps it"
        for one in (exec, own):
            await rig.world.places[id].commands[one].kill()
        assert (await running).status.signal == signal.SIGKILL


async def test_a_command_is_ended_once_its_caller_is_dead(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execs, "_ORPHAN_SECONDS", 0.0)
    async with rig.service() as service:
        id = await make(service)
    caller = subprocess.Popen(["sleep", "1000"])  # noqa: ASYNC220 - at once
    started = str(start_time(caller.pid))
    SESSION.set(SessionProcess(token="0" * 32, pid=caller.pid, start_time=started, boot_id="boot"))
    command = await left_running(rig, id, ExecId(mint(IdPrefix.EXEC)))
    async with rig.service() as service:
        for _ in range(20):
            await asyncio.sleep(0)
        assert command.id in service.execs.kept, "its caller may ask again"
        caller.kill()
        caller.wait()
        assert (await command.wait()).signal == signal.SIGKILL


async def moved(reader: ByteReader) -> bytes:
    """What a client gets of it."""
    far, near = os.pipe()
    os.set_blocking(near, False)
    reading = asyncio.ensure_future(asyncio.to_thread(_read_all, far))
    try:
        await pour(reader, Flow(Pump(), near))
    finally:
        os.close(near)
    return await reading


def _read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        return file.read()


async def test_a_foreground_command_that_is_let_go_is_recorded_once(rig: Rig) -> None:
    async with rig.service() as service:
        id = await make(service)
        handle = await service.perform(StartExec(sandbox=id, spec=sh("sleep 1000")), ME)
        pid = handle.pid
        waiting = asyncio.ensure_future(handle.wait())
        await asyncio.sleep(0)
        await handle.aclose()
        await handle.aclose()
        for wait in (waiting, handle.wait()):
            with pytest.raises(InvalidStateError, match="closed"):
                await wait
        assert not _runs(pid)
        assert len(outcomes(rig, "exec.start")) == 1


async def test_handles_that_are_never_closed_are_recorded_when_the_service_ends(rig: Rig) -> None:
    async with rig.service() as service:
        id = await make(service)
        await service.perform(StartExec(sandbox=id, spec=sh("sleep 1000"), background=True), ME)
    assert len(outcomes(rig, "exec.start")) == 1


async def test_background_commands_are_listed_attached_and_signalled(rig: Rig) -> None:
    async with rig.service() as service:
        id = await make(service)
        handle = await service.perform(StartExec(sandbox=id, spec=sh("cat", stdin=True), background=True), ME)
        (info,) = await service.perform(ListExecs(sandbox=id), ME)
        assert (info.id, info.background) == (handle.id, True)
        again = await service.perform(AttachExec(sandbox=id, exec=handle.id), ME)
        await service.perform(SignalExec(sandbox=id, exec=handle.id, signal=15), ME)
        assert (await again.wait()).signal == 15
        for h in (handle, again):
            await h.aclose()
        with pytest.raises(NotFoundError):
            await service.perform(AttachExec(sandbox=id, exec="ex_nope"), ME)


@pytest.mark.parametrize(
    "spec", [ExecSpec(argv=()), ExecSpec(argv=("a\0b",)), ExecSpec(argv=("x",), timeout_seconds=-1)]
)
async def test_a_command_that_makes_no_sense_is_refused(rig: Rig, spec: ExecSpec) -> None:
    async with rig.service() as service:
        id = await make(service)
        with pytest.raises(InvalidArgumentError):
            await service.perform(RunExec(sandbox=id, spec=spec), ME)


async def test_the_record_holds_digests_and_no_contents(rig: Rig) -> None:
    async with rig.service() as service:
        id = await make(service)
        await run(service, id, "cat; echo $V >&2", input=b"very private input", env={"V": "private value"})
        log = "".join(p.read_text() for p in (rig.state_dir / "audit").iterdir())
        assert "private" not in log
        out = outcomes(rig, "exec.run")[0]["detail"]["out"]
        assert out == {"sha256": hashlib.sha256(b"very private input").hexdigest(), "length": 18}


def outcomes(rig: Rig, action: str) -> list[dict[str, Any]]:
    lines = [line for p in sorted((rig.state_dir / "audit").glob("*.jsonl")) for line in p.read_text().splitlines()]
    found = [json.loads(line) for line in lines]
    return [r for r in found if r["kind"] == "outcome" and r["action"] == action]


def digest_of(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


def _runs(pid: int) -> bool:
    try:
        return (Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]) != "Z"
    except OSError:
        return False


async def test_what_is_read_when_a_command_has_ended_is_recorded_when_its_handle_is_closed(rig: Rig) -> None:
    async with rig.service() as service:
        id = await make(service)
        handle = await service.perform(StartExec(sandbox=id, spec=sh("echo late")), ME)
        await handle.wait()
        assert handle.stdout is not None
        while await handle.stdout.read():
            pass
        await handle.aclose()
        await handle.aclose()
        lines = [line for p in (rig.state_dir / "audit").glob("*.jsonl") for line in p.read_text().splitlines()]
        (event,) = [one for line in lines if (one := json.loads(line))["action"] == "exec.streams"]
        assert event["detail"]["out"] == {"sha256": hashlib.sha256(b"late\n").hexdigest(), "length": 5}
        assert event["detail"]["decision"] == outcomes(rig, "exec.start")[0]["of"]
        trouble = await service.perform(ListAudit(sandbox=id, trouble=True), ME)
        assert trouble == (), "it completes a record"


async def test_a_program_that_is_not_there_is_a_result_as_it_is_to_a_shell(rig: Rig) -> None:
    async with rig.service() as service:
        id = await make(service)
        spec = ExecSpec(argv=("paddock-no-such-program",))
        result = await service.perform(RunExec(sandbox=id, spec=spec), ME)
        assert (result.exit_code, result.stderr) == (127, "no program 'paddock-no-such-program'\n")
        with pytest.raises(ProgramNotFoundError):
            await service.perform(StartExec(sandbox=id, spec=spec), ME)
