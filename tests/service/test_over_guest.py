"""The door over the real guest, run as a plain process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from service_world import ME, Rig, until

from paddock.backends.process import ProcessBackend
from paddock.daemon.main.service import Service
from paddock.errors import FileError, SandboxDiedError
from paddock.model import (
    AttachExec,
    CreateSandbox,
    ExecSpec,
    ExtendSandbox,
    GetSandbox,
    KillSandbox,
    Level,
    Limit,
    Limits,
    ListExecs,
    ListFiles,
    ListSandboxes,
    ReadFile,
    RunExec,
    SandboxSpec,
    StartExec,
    State,
    StatFile,
    VerifyAudit,
    WriteFile,
)
from paddock.policy import local_policy
from tests.orphans import wait_until
from tests.stand_ins import OneTemplate


@pytest.fixture(autouse=True)
def no_guest_is_left(rig: Rig) -> Generator[None]:
    """What these tests orphan (a killed program, a killed guest) has this test's directory in its arguments."""
    yield
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(rig.state_dir).encode() in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGKILL)


@asynccontextmanager
async def opened(rig: Rig, **options: Any) -> AsyncGenerator[Service]:
    service = Service(
        rig.state_dir,
        backends=lambda: [ProcessBackend(rig.state_dir)],
        pool=lambda: rig.pool,
        templates=OneTemplate,
        policy=local_policy(os.getuid()),
        **options,
    )
    async with service:
        yield service


async def make(service: Service, **fields: Any) -> str:
    spec = SandboxSpec(level=Level.PROCESS, **fields)
    return (await service.perform(CreateSandbox(spec=spec), ME)).id


def sh(script: str, **fields: Any) -> ExecSpec:
    return ExecSpec(argv=("sh", "-c", script), **fields)


async def test_a_day_in_the_life(rig: Rig) -> None:
    async with opened(rig) as service:
        id = await make(service)
        writer = await service.perform(WriteFile(sandbox=id, path="/workspace/a/in.txt"), ME)
        await writer.write(b"one\ntwo\n")
        info = await writer.aclose()
        assert info is not None
        assert info.size_bytes == 8
        cat = sh("cat - a/in.txt; exit 4", cwd="/workspace")
        result = await service.perform(RunExec(sandbox=id, spec=cat, input=b"zero\n"), ME)
        assert (result.stdout, result.exit_code, result.limit) == ("zero\none\ntwo\n", 4, None)
        reader = await service.perform(ReadFile(sandbox=id, path="/workspace/a/in.txt"), ME)
        assert await reader.read() == b"one\ntwo\n"
        await reader.aclose()
        assert [f.name for f in await service.perform(ListFiles(sandbox=id, path="/workspace/a"), ME)] == ["in.txt"]
        with pytest.raises(FileError):
            await service.perform(StatFile(sandbox=id, path="/workspace/none"), ME)
        missing = await service.perform(RunExec(sandbox=id, spec=ExecSpec(argv=("no-such-program",))), ME)
        assert missing.status.code == 127
        assert (await service.perform(VerifyAudit(), ME)).ok
        await service.perform(KillSandbox(sandbox=id), ME)
        with pytest.raises(SandboxDiedError, match=f"killed by {ME.name}"):
            await service.perform(RunExec(sandbox=id, spec=sh("true")), ME)
        await until(lambda: rig.pool.names() == ())


@pytest.mark.parametrize("seconds", ["0", "0.02"])
async def test_a_command_that_has_ended_leaves_nothing_to_the_garbage_collector(rig: Rig, seconds: str) -> None:
    async with opened(rig) as service:
        action = RunExec(sandbox=await make(service), spec=ExecSpec(argv=("sleep", seconds)))
        await service.perform(action, ME)
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                await service.perform(action, ME)
            assert gc.collect() < 20, "objects"
        finally:
            gc.enable()


async def test_output_beyond_the_capture_and_beyond_the_limit(rig: Rig) -> None:
    async with opened(rig) as service:
        id = await make(service, limits=Limits(output_mib=4))
        result = await service.perform(RunExec(sandbox=id, spec=sh("seq 1 200000"), capture_bytes=1000), ME)
        assert result.out.file is not None
        whole = "".join(f"{n}\n" for n in range(1, 200_001)).encode()
        assert _digest(result.out.file) == hashlib.sha256(whole).digest()
        flood = await service.perform(RunExec(sandbox=id, spec=sh("yes", timeout_seconds=60)), ME)
        assert (flood.limit, flood.out.total_bytes) == (Limit.OUTPUT, 4 << 20)


async def test_a_timeout_ends_daemons_too(rig: Rig) -> None:
    async with opened(rig) as service:
        id = await make(service)
        script = "echo before; setsid sleep 997 & echo $!; sleep 998"
        result = await service.perform(RunExec(sandbox=id, spec=sh(script, timeout_seconds=3)), ME)
        assert result.limit is Limit.TIME
        assert result.stdout.startswith("before\n")
        pid = int(result.stdout.split()[1])
        await until(lambda: not _runs(pid))


async def test_a_command_that_ended_in_time_met_no_limit_though_its_service_stood_still(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(rig) as service:
        id = await make(service)
        go = rig.state_dir / "go"
        spec = sh(f"until test -e {go}; do sleep 0.01; done; echo done", timeout_seconds=60)
        run = asyncio.ensure_future(service.perform(RunExec(sandbox=id, spec=spec), ME))
        pids: list[int] = []
        while not pids:
            pids = [info.pid for info in await service.perform(ListExecs(sandbox=id), ME)]
            await asyncio.sleep(0.005)
        go.touch()
        assert wait_until(lambda: not _runs(pids[0]))  # meanwhile nothing happens here
        loop = asyncio.get_running_loop()
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + 600)
        result = await run
        assert (result.exit_code, result.stdout, result.limit) == (0, "done\n", None)


async def test_background_commands_outlive_their_handle(rig: Rig) -> None:
    async with opened(rig) as service:
        id = await make(service)
        script = "echo first; read line; echo got $line"
        handle = await service.perform(StartExec(sandbox=id, spec=sh(script, stdin=True), background=True), ME)
        assert handle.stdin is not None
        await handle.stdin.write(b"it\n")
        await handle.aclose()
        again = await service.perform(AttachExec(sandbox=id, exec=handle.id), ME)
        assert again.stdout is not None
        seen = b""
        while data := await again.stdout.read():
            seen += data
        assert seen == b"first\ngot it\n"
        assert (await again.wait()).code == 0
        await again.aclose()
        (info,) = await service.perform(ListExecs(sandbox=id), ME)
        assert info.status is not None


async def test_the_timeout_of_a_background_command_holds_after_it_was_let_go(rig: Rig) -> None:
    async with opened(rig) as service:
        id = await make(service)
        spec = sh("setsid sleep 994 & sleep 993", timeout_seconds=0.4)
        handle = await service.perform(StartExec(sandbox=id, spec=spec, background=True), ME)
        await handle.aclose()
        status = None
        while status is None:
            ((_, status),) = [(i.id, i.status) for i in await service.perform(ListExecs(sandbox=id), ME)]
            await asyncio.sleep(0.01)
        assert status.signal == signal.SIGKILL


async def test_the_deadline_is_kept_and_told(rig: Rig) -> None:
    async with opened(rig) as service:
        id = await make(service)
        with contextlib.suppress(SandboxDiedError):  # it may be dead before that is answered
            await service.perform(ExtendSandbox(sandbox=id, ttl_seconds=1), ME)
        with pytest.raises(SandboxDiedError):
            await service.perform(RunExec(sandbox=id, spec=sh("sleep 999")), ME)
        seen = await service.perform(GetSandbox(sandbox=id), ME)
        assert (seen.state, seen.limit) == (State.KILLED, Limit.TTL)


async def test_a_cancelled_run_leaves_no_process(rig: Rig) -> None:
    async with opened(rig) as service:
        id = await make(service)
        run = asyncio.ensure_future(service.perform(RunExec(sandbox=id, spec=sh("sleep 996")), ME))
        pids: list[int] = []
        while not pids:
            pids = [info.pid for info in await service.perform(ListExecs(sandbox=id), ME)]
            await asyncio.sleep(0.005)
        run.cancel()
        await asyncio.wait((run,))
        assert run.cancelled()
        await until(lambda: not _runs(pids[0]))


async def test_twenty_commands_at_once(rig: Rig) -> None:
    async with opened(rig) as service:
        id = await make(service)
        run = [service.perform(RunExec(sandbox=id, spec=sh(f"echo {n}; exit {n}")), ME) for n in range(20)]
        assert [(r.stdout, r.exit_code) for r in await asyncio.gather(*run)] == [(f"{n}\n", n) for n in range(20)]


async def test_a_guest_that_dies_is_noticed(rig: Rig) -> None:
    async with opened(rig) as service:
        id = await make(service)
        instance = service.running._sandboxes.get(id)  # pyright: ignore
        assert instance is not None
        os.kill(instance.instance._guest.pid, signal.SIGKILL)  # pyright: ignore
        with pytest.raises(SandboxDiedError):
            await service.perform(RunExec(sandbox=id, spec=sh("sleep 1")), ME)
        assert (await service.perform(GetSandbox(sandbox=id), ME)).state is State.KILLED


_PROGRAM = """
import asyncio, os, sys
from pathlib import Path
sys.path[:0] = [sys.argv[2]]
from service_world import ME, Rig
from test_over_guest import make, opened, sh
from paddock.model import CreateSandbox, KillSandbox, Level, ListSandboxes, RunExec, SandboxSpec

async def main():
    async with opened(Rig(Path(sys.argv[1]))) as service:
        for number in range(int(sys.argv[3])):
            id = await make(service, name=f"{os.getpid()}-{number}")
            result = await service.perform(RunExec(sandbox=id, spec=sh("echo hi")), ME)
            assert result.stdout == "hi\\n"
            if number % 2:
                await service.perform(KillSandbox(sandbox=id), ME)
        if len(sys.argv) > 4:
            print(id, flush=True)
            os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def program(rig: Rig, rounds: int, *more: str) -> tuple[int, str]:
    arguments = ("-c", _PROGRAM, str(rig.state_dir), os.path.dirname(__file__), str(rounds), *more)
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


async def test_programs_one_after_the_other_on_one_state_directory(rig: Rig) -> None:
    assert [(await program(rig, 4))[0] for _ in range(3)] == [0, 0, 0]
    async with opened(rig) as service:
        rows = await service.perform(ListSandboxes(ended=True), ME)
        assert [r.state for r in rows] == [State.KILLED] * 12
        assert rig.pool.names() == ()
        report = await service.perform(VerifyAudit(), ME)
        assert report.ok, report.problem
        assert report.segments <= 4


async def test_what_a_killed_program_left_is_told_and_removed(rig: Rig) -> None:
    code, out = await program(rig, 1, "die")
    assert code == -signal.SIGKILL
    async with opened(rig) as service:
        seen = await service.perform(GetSandbox(sandbox=out.strip()), ME)
        assert seen.state is State.FAILED
        await until(lambda: rig.pool.names() == ())
        assert (await service.perform(VerifyAudit(), ME)).ok


def _digest(path: str) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
