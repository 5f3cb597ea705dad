"""The guest as a program of its own: a directory or a zip, over sockets or over a pair of pipes."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from test_exec import alive, collect, start, until

from paddock.backends._guest import GuestConnection
from tests.guest.agents import SRC

GUEST = SRC / "paddock" / "guest"


@pytest.fixture(params=["directory", "zip"])
def guest(request, tmp_path):
    if request.param == "directory":
        return GUEST
    path = tmp_path / "guest.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for module in GUEST.glob("*.py"):
            archive.write(module, module.name)
    return path


def agent_config(directory: Path, **fields):
    return {
        **fields,
        "user": {"name": "user", "uid": os.getuid(), "gid": os.getgid()},
        "workdir": str(directory),
        "exec_dir": str(directory / "execs"),
        "env": {"PATH": "/usr/bin:/bin"},
    }


def launch(guest, config, **fields):
    command = [sys.executable, "-I", "-S", str(guest), json.dumps({"fatal_imports": True, **config})]
    return subprocess.Popen(command, env={}, **fields)


def test_over_a_pair_of_pipes_everything_goes_in_frames(guest, tmp_path):
    ours, theirs = socket.socketpair()
    in_reader, in_writer = os.pipe()
    out_reader, out_writer = os.pipe()
    process = launch(
        guest,
        {"stream": [in_reader, out_writer], "agent": agent_config(tmp_path)},
        pass_fds=[in_reader, out_writer],
    )
    os.close(in_reader)
    os.close(out_writer)

    async def main():
        loop = asyncio.get_running_loop()

        async def carry(receive, send):
            while data := await receive():
                await send(data)

        inwards = asyncio.ensure_future(
            carry(lambda: loop.sock_recv(theirs, 65536), lambda data: asyncio.to_thread(os.write, in_writer, data))
        )
        outwards = asyncio.ensure_future(
            carry(lambda: asyncio.to_thread(os.read, out_reader, 65536), lambda data: loop.sock_sendall(theirs, data))
        )
        theirs.setblocking(False)
        connection = GuestConnection(ours)
        connection.descriptors = False
        status, out, _ = await collect(await start(connection, "sh", "-c", "cat; pwd", stdin=False))
        assert (status.code, out) == (0, str(tmp_path).encode() + b"\n")
        connection.close()
        await inwards
        os.close(in_writer)
        await outwards

    asyncio.run(main())
    assert process.wait(10) == 0
    os.close(out_reader)
    theirs.close()


class Init:
    """An init of its own, with two agents, of which one is eager."""

    def __init__(self, guest, directory, seconds=1000.0, **fields):
        self.directory = directory
        self.reader, writer = os.pipe()
        agent = agent_config(directory, **fields)
        config = {
            "control": str(directory / "init.sock"),
            "deadline": time.clock_gettime(time.CLOCK_BOOTTIME) + seconds,
            "grace_seconds": 0.0,
            "host": writer,
            "agents": {name: {**agent, "listen": str(directory / f"{name}.sock")} for name in ("user", "root")},
        }
        self.process = launch(guest, config, pass_fds=[writer])
        os.close(writer)
        assert os.read(self.reader, 10) == b"ready\n"

    async def dial(self, name):
        return await GuestConnection.connect(self.directory / f"{name}.sock")

    async def ask(self, **request):
        connection = await self.dial("init")
        try:
            return await connection.open(request).call(dict)
        finally:
            connection.close()

    def stop(self):
        self.process.terminate()
        assert self.process.wait(10) == 0
        os.close(self.reader)


@pytest.fixture
def init(tmp_path):
    init = Init(GUEST, tmp_path)
    yield init
    init.stop()


def test_an_agent_starts_with_the_first_connection_and_again_after_it_died(init):
    async def main():
        agents = (await init.ask(op="agents"))["agents"]
        assert agents["user"]
        assert agents["root"] is None
        connection = await init.dial("root")
        first = (await connection.open({"op": "ping"}).call(dict))["pid"]
        assert (await init.ask(op="agents"))["agents"] == {"user": agents["user"], "root": first}
        os.kill(first, 9)
        connection.close()
        again = await init.dial("root")
        assert (await again.open({"op": "ping"}).call(dict))["pid"] != first
        again.close()

    asyncio.run(main())


def test_an_agent_holds_nobody_elses_listener(init):
    async def main():
        connection = await init.dial("user")
        pid = (await connection.open({"op": "ping"}).call(dict))["pid"]
        held = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        assert len([link for link in held if link.startswith("socket:")]) == 2  # its own, and ours
        connection.close()

    asyncio.run(main())


def test_orphans_are_reaped(init):
    async def main():
        connection = await init.dial("user")
        await collect(await start(connection, "sh", "-c", "(sleep 0.05 &) ; exit 0"))
        agent = (await init.ask(op="agents"))["agents"]["user"]
        os.kill(agent, 9)
        connection.close()

    asyncio.run(main())

    def children():
        path = f"/proc/{init.process.pid}/task/{init.process.pid}/children"
        return Path(path).read_text().split()

    until(lambda: all(alive(pid) for pid in children()))


def test_the_deadline_takes_everything_along(tmp_path):
    init = Init(GUEST, tmp_path)

    async def main():
        connection = await init.dial("user")
        handle = await start(connection, "setsid", "sleep", "1000")
        await init.ask(op="deadline", boottime=time.clock_gettime(time.CLOCK_BOOTTIME) + 0.05)
        until(lambda: init.process.poll() is not None)
        assert not alive(handle.pid)
        connection.close()

    asyncio.run(main())
    assert init.process.returncode == 0


@pytest.mark.parametrize(
    "modules",
    [("_start",), ("_pilot", "_pilot_microvm", "_qemu", "_shares"), ("_pilot", "_pilot_gvisor")],
    ids=lambda m: m[-1],
)
def test_it_loads_nothing_of_the_library_that_costs_more_than_it_gives(modules: tuple[str, ...]) -> None:
    """Whoever starts in a container or a machine, or beside one, is waited for: data classes bring the parser of Python
    with them."""
    look = (
        "import importlib, sys, types; p = types.ModuleType('g'); p.__path__ = [sys.argv[1]]; sys.modules['g'] = p\n"
        "for name in sys.argv[2:]: importlib.import_module('g.' + name)\n"
        "print(*({'dataclasses', 'inspect', 'ast', 'asyncio', 'subprocess'} & set(sys.modules)))"
    )
    argv = [sys.executable, "-I", "-S", "-c", look, str(GUEST), *modules]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip() == ""
