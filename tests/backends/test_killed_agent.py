"""kill -9 of the agent, whatever is under way: commands have ended by that signal, calls say what happened and may be
made again, pid 1 lives on, nothing of the dead agent's runs on, and no descriptor is lost."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from paddock.backends.guest.instance import GuestInstance
from paddock.errors import GuestLostError, SandboxDiedError
from paddock.model import (
    CopyFile,
    DownloadTree,
    ExecId,
    ExecSpec,
    FindFiles,
    GrepFiles,
    IdPrefix,
    ListFiles,
    PtySize,
    ReadFile,
    StatFile,
    UploadTree,
    WatchFiles,
    WriteFile,
    mint,
)
from tests.backends.boxes import sandbox
from tests.orphans import PATIENCE_SECONDS, descriptors, none_lost, wait_until

SLEEP = ("sleep", "600")


async def start(box: GuestInstance, *argv: str, background: bool = False, **spec: Any) -> Any:
    return await box.start(ExecSpec(argv=argv, **spec), id=ExecId(mint(IdPrefix.EXEC)), background=background)


async def output_of(box: GuestInstance, script: str) -> bytes:
    handle = await start(box, "sh", "-c", script)
    printed = b""
    while data := await handle.stdout.read():
        printed += data
    await handle.wait()
    await handle.aclose()
    return printed


async def agent_of(box: GuestInstance) -> int:
    return int(await output_of(box, "echo $PPID"))


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    assert wait_until(lambda: state_of(pid) == "T")


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def alive(pid: int) -> bool:
    return state_of(pid) not in ("gone", "Z")


@pytest.mark.parametrize(
    "spec",
    [{}, {"stdin": True}, {"pty": PtySize()}, {"background": True}, {"background": True, "stdin": True}],
    ids=lambda spec: "+".join(spec) or "plain",
)
def test_a_running_command_has_ended_by_that_signal(tmp_path: Path, spec: dict[str, Any]) -> None:
    async def main() -> None:
        async with sandbox(tmp_path) as box:
            agent = await agent_of(box)
            before = len(descriptors())
            handle = await start(box, "sh", "-c", "setsid sleep 600 & echo $!; sleep 600", **spec)
            daemon = int(await handle.stdout.read())
            os.kill(agent, signal.SIGKILL)
            assert (await handle.wait()).signal == signal.SIGKILL
            assert await handle.stdout.read() == b""
            assert not alive(handle.pid), "it says so because it is so"
            assert not alive(daemon)
            await handle.kill()
            await handle.aclose()
            assert await output_of(box, "echo next") == b"next\n"
            assert await agent_of(box) != agent
            # The connection to the new agent stands in for the one to the old.
            assert await asyncio.to_thread(none_lost, before)

    asyncio.run(main())


def test_a_command_that_kills_its_own_agent_is_killed_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with sandbox(tmp_path) as box:
            for script in ("kill -9 $PPID; sleep 600", "kill -9 $PPID"):
                handle = await start(box, "sh", "-c", script)
                assert (await handle.wait()).signal == signal.SIGKILL
                await handle.aclose()
            background = await start(box, "sh", "-c", "kill -9 $PPID; sleep 600", background=True)
            assert (await background.wait()).signal == signal.SIGKILL
            await background.aclose()
            assert await output_of(box, "echo next") == b"next\n"

    asyncio.run(main())


async def _written(writer: Any) -> None:
    async def write() -> None:
        while True:
            await writer.write(bytes(1 << 16))

    with pytest.raises(GuestLostError):
        await write()
    await writer.abort()


async def _read(reader: Any) -> None:
    async def read() -> None:
        while await reader.read():
            pass

    with pytest.raises(GuestLostError, match="was killed by signal 9"):
        await read()
    await reader.aclose()


async def _next(changes: Any) -> None:
    with pytest.raises(GuestLostError):
        await changes.next()
    await changes.aclose()


def action(kind: Any, **fields: Any) -> Callable[[GuestInstance], Awaitable[Any]]:
    return lambda box: box.file(kind(sandbox=box.id, path="big", **fields))


@pytest.mark.parametrize(
    ("opened", "ends"),
    [
        (action(ReadFile), _read),
        (action(DownloadTree), _read),
        (action(WriteFile), _written),
        (lambda box: box.file(UploadTree(sandbox=box.id, path="into")), _written),
        (lambda box: box.file(WatchFiles(sandbox=box.id, path=".")), _next),
    ],
    ids=["read", "download", "write", "upload", "watch"],
)
def test_an_open_stream_says_what_happened(tmp_path: Path, opened: Any, ends: Any) -> None:
    async def main() -> None:
        async with sandbox(tmp_path) as box:
            await output_of(box, "head -c 30000000 /dev/zero >big")
            agent = await agent_of(box)
            before = len(descriptors())
            stream = await opened(box)
            os.kill(agent, signal.SIGKILL)
            async with asyncio.timeout(60):
                await ends(stream)
            assert await output_of(box, "echo next") == b"next\n"
            assert await asyncio.to_thread(none_lost, before)

    asyncio.run(main())


@pytest.mark.parametrize(
    "call",
    [
        action(StatFile),
        action(ReadFile),
        action(WriteFile),
        action(DownloadTree),
        action(ListFiles),
        action(FindFiles),
        action(WatchFiles),
        action(GrepFiles, pattern="x"),
        lambda box: box.file(CopyFile(sandbox=box.id, source="big", destination="copy")),
        lambda box: box.execs(),
        lambda box: box.signal_exec(ExecId("ex_1"), 1),
    ],
    ids=["stat", "read", "write", "download", "list", "find", "watch", "grep", "copy", "execs", "signal"],
)
def test_a_call_under_way_says_what_happened_and_can_be_made_again(tmp_path: Path, call: Any) -> None:
    async def main() -> None:
        async with sandbox(tmp_path) as box:
            agent = await agent_of(box)
            init = parent(agent)
            before = len(descriptors())
            stop(init)  # which would let the agent go on
            stop(agent)
            calling = asyncio.ensure_future(call(box))
            for _ in range(3):
                await asyncio.sleep(0)  # it is sent
            os.kill(agent, signal.SIGKILL)
            os.kill(init, signal.SIGCONT)
            async with asyncio.timeout(60):
                with pytest.raises(GuestLostError, match="was killed by signal 9") as caught:
                    await calling
            assert not isinstance(caught.value, SandboxDiedError)
            assert "try again" in (caught.value.hint or "")
            assert await output_of(box, "echo next") == b"next\n"
            assert await asyncio.to_thread(none_lost, before)

    asyncio.run(main())


def test_what_another_program_runs_there_ends_as_well(tmp_path: Path) -> None:
    """Two services on one sandbox: each hears what became of its own."""

    async def main() -> None:
        async with sandbox(tmp_path) as box:
            other = GuestInstance(box.id, box.template, root_user=False)
            other.connect = box.connect  # type: ignore[method-assign]
            other._explain = box._explain  # of no sandbox of this level a second service would know
            agent = await agent_of(box)
            handles = [await start(one, *SLEEP) for one in (box, other)]
            os.kill(agent, signal.SIGKILL)
            assert [(await handle.wait()).signal for handle in handles] == [9, 9]
            for handle in handles:
                await handle.aclose()
            other.close_connections()

    asyncio.run(main())


def test_who_connects_while_a_killed_agent_is_cleared_away_reaches_the_next_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with sandbox(tmp_path) as box:
            agent = await agent_of(box)
            init = parent(agent)
            stop(init)
            os.kill(agent, signal.SIGKILL)
            box.close_connections()
            asking = asyncio.ensure_future(output_of(box, "echo $PPID"))
            await asyncio.sleep(0)  # it connects in that turn
            os.kill(init, signal.SIGCONT)
            assert int(await asking) != agent

    asyncio.run(main())


def test_the_death_of_pid_1_is_the_sandboxs(tmp_path: Path) -> None:
    async def main() -> None:
        async with sandbox(tmp_path) as box:
            agent = await agent_of(box)
            init = parent(agent)
            before = len(descriptors())
            handle = await start(box, *SLEEP)
            command = os.pidfd_open(handle.pid)
            os.kill(init, signal.SIGKILL)
            with pytest.raises(SandboxDiedError):
                await handle.wait()
            await handle.aclose()
            assert await asyncio.to_thread(select.select, [command], [], [], PATIENCE_SECONDS) == ([command], [], [])
            os.close(command)
            with pytest.raises(SandboxDiedError):
                await box.file(StatFile(sandbox=box.id, path="."))
            # The connection is gone, and the descriptor of the process.
            assert await asyncio.to_thread(none_lost, before - 2)

    asyncio.run(main())


def test_signals_to_everybody_are_not_for_the_agent(tmp_path: Path) -> None:
    async def main() -> None:
        async with sandbox(tmp_path) as box:
            agent = await agent_of(box)
            for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "ALRM", "TSTP", "TTIN", "TTOU"):
                handle = await start(box, *SLEEP)
                await output_of(box, f"kill -{name} $PPID")
                assert await agent_of(box) == agent
                number = signal.Signals[f"SIG{name}"]
                if name not in ("TSTP", "TTIN", "TTOU"):
                    await handle.signal(number)
                    assert (await handle.wait()).signal == number, "commands have the kernel's own answer to it"
                await handle.aclose()

    asyncio.run(main())
