"""The process backend keeps the contract of a backend, isolation excepted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import signal
import subprocess
import sys

import msgspec
import pytest

from paddock.backends import TreeMount, load, names
from paddock.backends.guest._requests import of_file
from paddock.backends.process import ProcessBackend
from paddock.errors import InvalidStateError, NotFoundError, SandboxDiedError, UnsupportedError
from paddock.linux import pidfd
from paddock.linux.proc import parent
from paddock.model import ExecId, ExecSpec, IdPrefix, Limit, ListFiles, StatFile, mint
from tests.backends.boxes import boottime, plan, sandbox
from tests.orphans import PATIENCE_SECONDS


def new_id():
    return ExecId(mint(IdPrefix.EXEC))


async def output_of(instance, *argv):
    handle = await instance.start(ExecSpec(argv=argv), id=new_id(), background=False)
    out = b""
    while data := await handle.stdout.read():
        out += data
    assert (await handle.wait()).code == 0
    await handle.aclose()
    return out


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_is_found_by_name():
    assert load("process") is ProcessBackend
    assert "jail" in names()
    with pytest.raises(NotFoundError, match="process"):
        load("nosuch")


def test_a_sandbox_runs_commands_below_its_own_directory(long_directory):
    async def main():
        async with sandbox(long_directory) as box:
            assert (await output_of(box, "pwd")).endswith(b"/root/workspace\n")
            assert (await output_of(box, "sh", "-c", "echo $HOME")).endswith(b"/root/home/user\n")
            names = [info.path for info in await box.file(ListFiles(sandbox=box.id, path="/"))]
            assert names == ["/home", "/tmp", "/workspace"]
            with pytest.raises(UnsupportedError):
                await box.start(ExecSpec(argv=("true",), user="root"), id=new_id(), background=False)
            with pytest.raises(NotFoundError):
                await box.file(StatFile(sandbox=box.id, path="/", user="nobody-there"))

    asyncio.run(main())


def test_kill_ends_everything_and_is_idempotent(tmp_path):
    async def main():
        async with sandbox(tmp_path) as box:
            handle = await box.start(
                ExecSpec(argv=("sh", "-c", "setsid sleep 1000 & echo $!; wait")), id=new_id(), background=False
            )
            daemon = int(await handle.stdout.read())
            back = await box.start(ExecSpec(argv=("sleep", "1000")), id=new_id(), background=True)
            await box.kill()
            assert not alive(daemon)
            assert not alive(back.pid)
            with pytest.raises(SandboxDiedError):
                await handle.wait()
            with pytest.raises(SandboxDiedError, match="killed"):
                await box.start(ExecSpec(argv=("true",)), id=new_id(), background=False)
            assert (await box.wait_ended()).reason == "killed"
            await box.kill()
        assert list((tmp_path / "run").iterdir()) == []

    asyncio.run(main())


def test_the_deadline_ends_it_and_can_be_moved(tmp_path):
    async def main():
        async with sandbox(tmp_path, seconds=1000) as box:
            handle = await box.start(ExecSpec(argv=("sleep", "1000")), id=new_id(), background=False)
            await box.set_deadline(boottime() + 0.05)
            ending = await box.wait_ended()
            assert ending.limit is Limit.TTL
            assert not alive(handle.pid)

    asyncio.run(main())


def test_a_backend_knows_what_lives_and_forgets_what_has_ended(tmp_path):
    async def main():
        backend = ProcessBackend(tmp_path)
        box = await backend.create(plan())
        assert (await backend.state()).living == {box.id: None}
        assert await backend.adopt(box.id) is box
        await box.kill()
        assert (await backend.state()).living[box.id].reason == "killed"
        assert await backend.adopt(box.id) is None
        await backend.forget(box.id)
        assert (await backend.state()).living == {}

    asyncio.run(main())


def test_an_agent_that_died_is_started_again(tmp_path):
    async def main():
        async with sandbox(tmp_path) as box:
            agent = int(await output_of(box, "sh", "-c", "echo $PPID"))
            handle = await box.start(ExecSpec(argv=("sleep", "1000")), id=new_id(), background=False)
            os.kill(agent, signal.SIGKILL)
            assert (await handle.wait()).signal == signal.SIGKILL
            assert int(await output_of(box, "sh", "-c", "echo $PPID")) != agent

    asyncio.run(main())


def test_execs_are_listed_and_signalled_by_id(tmp_path):
    async def main():
        async with sandbox(tmp_path) as box:
            handle = await box.start(ExecSpec(argv=("sleep", "1000")), id=new_id(), background=True)
            (info,) = await box.execs()
            assert (info.id, info.argv, info.pid, info.background, info.status) == (
                handle.id,
                ("sleep", "1000"),
                handle.pid,
                True,
                None,
            )
            await box.signal_exec(handle.id, signal.SIGTERM)
            assert (await handle.wait()).signal == signal.SIGTERM
            (info,) = await box.execs()
            assert info.status.signal == signal.SIGTERM
            with pytest.raises(InvalidStateError):
                await box.signal_exec(handle.id, signal.SIGTERM)
            again = await box.attach(handle.id)
            assert (await again.wait()).signal == signal.SIGTERM

    asyncio.run(main())


def test_trees_of_the_pool_are_refused_in_words(long_directory):
    async def main():
        mount = TreeMount(tree="ws_1", target="/workspace", writable=True)
        with pytest.raises(UnsupportedError, match="'process' doesn't support workspaces"):
            await ProcessBackend(long_directory).create(msgspec.structs.replace(plan(), trees=(mount,)))

    asyncio.run(main())


def test_all_commands_are_listed_however_much_they_say(tmp_path):
    async def main():
        async with sandbox(tmp_path) as box:
            sleeper = await box.start(ExecSpec(argv=("sleep", "600")), id=new_id(), background=False)
            ids = [sleeper.id]
            for _ in range(30):  # six characters for each byte: 6 KiB of list
                handle = await box.start(ExecSpec(argv=("true", "\udcff" * 1024)), id=new_id(), background=True)
                ids.append(handle.id)
                await handle.aclose()
            assert [info.id for info in await box.execs()] == ids
            for _ in range(40):
                handle = await box.start(ExecSpec(argv=("true", "\udcff" * 1024)), id=new_id(), background=True)
                ids.append(handle.id)
                await handle.aclose()
            assert [info.id for info in await box.execs()] == ids
            await sleeper.aclose()

    asyncio.run(main())


# Each generation forks the next and ends: never the same pid for long. All hold the pipe; none outlives its reader.
_HYDRA = """
import os, select, sys
pipe = os.open(sys.argv[1], os.O_WRONLY)
ended = select.poll()
ended.register(pipe, 0)
os.write(pipe, b'.')
while not ended.poll(1):
    if os.fork(): os._exit(0)
"""
_HOLDER = """
import asyncio, pathlib, sys
from paddock.backends.process import ProcessBackend
from paddock.model import ExecId, ExecSpec, IdPrefix, mint
from tests.backends.boxes import plan
async def main():
    box = await ProcessBackend(pathlib.Path(sys.argv[1])).create(plan())
    argv = ("sh", "-c", 'echo $PPID; exec python3 -I -S -c "$@"', "sh", *sys.argv[2:])
    handle = await box.start(ExecSpec(argv=argv), id=ExecId(mint(IdPrefix.EXEC)), background=False)
    print((await handle.stdout.read()).decode().strip(), flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.parametrize("victims", [("daemon",), ("init",), ("agent",), ("daemon", "init")], ids="-".join)
def test_what_forks_without_end_ends_with_whatever_is_killed(victims, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    command = [sys.executable, "-c", _HOLDER, tmp_path, _HYDRA, fifo]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        agent = int(holder.stdout.readline())
        pids = {"daemon": holder.pid, "agent": agent, "init": parent(agent)}
        # The one may end, and its number be another's, when the other is killed.
        victims = [pidfd.open(pids[victim]) for victim in victims]
        ends = select.poll()
        ends.register(reader, select.POLLIN)
        assert ends.poll(PATIENCE_SECONDS * 1000)
        os.read(reader, 1)
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                pidfd.send_signal(victim, signal.SIGKILL)
            os.close(victim)
        assert ends.poll(PATIENCE_SECONDS * 1000) == [(reader, select.POLLHUP)], "it forks on"
    finally:
        os.close(reader)
        holder.kill()
        holder.communicate()


def test_a_directory_that_is_not_empty_is_refused_with_what_removes_it() -> None:
    error = of_file(errno.ENOTEMPTY, "operation", "build")
    assert str(error) == "Directory not empty: build (recursive=True removes it with all below it)"
