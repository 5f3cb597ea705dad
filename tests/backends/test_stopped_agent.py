"""SIGSTOP of the agent: pid 1 lets it go on; and where it does not, calls end with an error that says so."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paddock.backends.guest.connection import GuestConnection
from paddock.errors import GuestLostError
from paddock.model import (
    CopyFile,
    DownloadTree,
    ExecId,
    ExecSpec,
    FindFiles,
    GrepFiles,
    ListFiles,
    ReadFile,
    RemoveFile,
    StatFile,
    UploadTree,
    WatchFiles,
    WriteFile,
)
from tests.backends.boxes import sandbox
from tests.backends.test_killed_agent import agent_of, alive, output_of, parent, start, state_of, stop
from tests.orphans import descendants, descriptors, none_lost, wait_until


@contextmanager
def stopped(agent: int) -> Iterator[None]:
    """With its pid 1, which would let it go on. Nobody has much patience meanwhile."""
    init = parent(agent)
    stop(init)
    stop(agent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GuestConnection, "patience_seconds", 0.3)
        try:
            yield
        finally:
            os.kill(agent, signal.SIGCONT)
            os.kill(init, signal.SIGCONT)


def action(kind: Any, path: str = "big", **fields: Any) -> Any:
    return lambda box: box.file(kind(sandbox=box.id, path=path, **fields))


CALLS = {
    "stat": action(StatFile),
    "read": action(ReadFile),
    "write": action(WriteFile, "new"),
    "download": action(DownloadTree),
    "upload": action(UploadTree, "into"),
    "list": action(ListFiles, "."),
    "find": action(FindFiles, "."),
    "grep": action(GrepFiles, ".", pattern="x"),
    "watch": action(WatchFiles, "."),
    "remove": action(RemoveFile, "nothing", missing_ok=True),
    "remove_tree": action(RemoveFile, "nothing", missing_ok=True, recursive=True),
    "copy": lambda box: box.file(CopyFile(sandbox=box.id, source="big", destination="copy")),
    "execs": lambda box: box.execs(),
    "signal": lambda box: box.signal_exec(ExecId("ex_1"), 1),
    "start": lambda box: box.start(ExecSpec(argv=("true",)), id=ExecId("ex_2"), background=False),
    "start_background": lambda box: box.start(ExecSpec(argv=("true",)), id=ExecId("ex_3"), background=True),
}


def test_no_call_hangs_and_all_work_again_when_it_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with sandbox(tmp_path) as box:
            await output_of(box, "head -c 3000000 /dev/zero >big")
            agent = await agent_of(box)
            before = len(descriptors())
            with stopped(agent):
                async with asyncio.timeout(60):
                    results = await asyncio.gather(*(call(box) for call in CALLS.values()), return_exceptions=True)
                for name, result in zip(CALLS, results, strict=True):
                    assert isinstance(result, GuestLostError), (name, result)
                    assert "has not answered" in result.message
            # The same connection: what was given up is answered late, which disturbs nobody.
            assert await output_of(box, "echo next") == b"next\n"
            assert await agent_of(box) == agent
            assert await asyncio.to_thread(none_lost, before)
            assert await asyncio.to_thread(wait_until, lambda: not descendants(agent)), "the agent has cleaned up"

    asyncio.run(main())


async def exhaust(reader: Any) -> None:
    while await reader.read():
        pass


async def overfill(writer: Any) -> None:
    while True:
        await writer.write(bytes(1 << 16))


@pytest.mark.parametrize(
    ("name", "ends"),
    [("read", exhaust), ("download", exhaust), ("write", overfill), ("upload", overfill), ("write", "aclose")],
)
def test_no_stream_hangs(tmp_path: Path, name: str, ends: Any) -> None:
    async def main() -> None:
        async with sandbox(tmp_path) as box:
            await output_of(box, "head -c 30000000 /dev/zero >big")
            agent = await agent_of(box)
            before = len(descriptors())
            stream = await CALLS[name](box)
            with stopped(agent):
                # Whatever works for it as well: an archive is a worker's.
                for worker in descendants(agent):
                    stop(worker)
                with pytest.raises(GuestLostError, match="has not answered"):
                    await (stream.aclose() if ends == "aclose" else ends(stream))
            await (stream.abort() if hasattr(stream, "abort") else stream.aclose())
            assert await output_of(box, "echo next") == b"next\n"
            assert await asyncio.to_thread(none_lost, before)

    asyncio.run(main())


def test_what_a_command_prints_comes_through_and_its_end_is_heard_later(tmp_path: Path) -> None:
    async def main() -> None:
        async with sandbox(tmp_path) as box:
            handle = await start(box, "sh", "-c", "read go; head -c 5000000 /dev/zero", stdin=True)
            with stopped(await agent_of(box)):
                await handle.stdin.write(b"go\n")
                total = 0
                while total < 5_000_000:
                    total += len(await handle.stdout.read())
                with pytest.raises(GuestLostError):
                    await handle.kill()
                # What the agent has been sent it does when it goes on, and this must not be there to be killed then.
                assert await asyncio.to_thread(wait_until, lambda: not alive(handle.pid))
            assert (await handle.wait()).code == 0
            await handle.aclose()

    asyncio.run(main())


def test_work_that_takes_long_is_waited_for_while_the_agent_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop's clock is turned on while the worker is at it: far enough for each ping, whose answer comes in its own
    time."""

    async def main() -> None:
        async with sandbox(tmp_path) as box:
            loop, skipped = asyncio.get_running_loop(), [0.0]
            clock = loop.time
            monkeypatch.setattr(loop, "time", lambda: clock() + skipped[0])
            place = await output_of(box, "pwd; head -c 64M /dev/zero | tr '\\0' a >file")
            connection = await box.connection("user")
            # Says nothing while it looks, for as long as the file is: at each byte it is at 1,000 places.
            grep = GrepFiles(sandbox=box.id, path="file", pattern="[ab]{1000}[cd]")
            looking = asyncio.ensure_future(box.file(grep))
            await asyncio.sleep(0)
            while skipped[0] < 3 * connection.patience_seconds:
                before, skipped[0] = connection.heard_at, skipped[0] + connection.patience_seconds / 2
                while connection.heard_at == before:  # noqa: ASYNC110 (nobody else is told of a ping's answer)
                    await asyncio.sleep(0.001)
                assert not looking.done()
            os.truncate(place.decode().strip() + "/file", 0)
            assert await looking == ()

    asyncio.run(main())


def test_pid_1_lets_a_stopped_agent_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with sandbox(tmp_path) as box:
            agent = await agent_of(box)
            for _ in range(5):
                assert await output_of(box, "kill -STOP $PPID; echo stopped") == b"stopped\n"
                await box.file(StatFile(sandbox=box.id, path="."))
            assert await agent_of(box) == agent

    asyncio.run(main())


def test_a_stopped_worker_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with sandbox(tmp_path) as box:
            await output_of(box, "head -c 10000000 /dev/zero >big")
            agent = await agent_of(box)
            reader = await box.file(DownloadTree(sandbox=box.id, path="big"))
            (worker,) = descendants(agent)
            os.kill(worker, signal.SIGSTOP)
            async with asyncio.timeout(60):
                await exhaust(reader)
            await reader.aclose()
            assert state_of(worker) in ("gone", "Z")

    asyncio.run(main())
