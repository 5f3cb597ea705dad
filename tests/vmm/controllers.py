"""A real controller as a process of its own, and behind it the native guest, with no further wall."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import paddock.vmm
from paddock.backends.guest import PING, EmptyBody, GuestDefaults, orders, program
from paddock.backends.guest.connection import GuestConnection
from paddock.backends.guest.exec import start_foreground
from paddock.backends.vmm import Control
from paddock.model import ExecId, ExecSpec, IdPrefix, User, mint
from paddock.wire.guest import VERSION, HostHello, Kind, PingReply
from tests import frames
from tests.vmm.plain import package

HELLO = frames.pack(Kind.HELLO, 0, HostHello(version=VERSION).pack())
GUEST = Path(paddock.vmm.__file__).parent
SRC = GUEST.parent.parent
_START = "import sys; sys.path.insert(0, sys.argv[1]); from paddock.vmm.controller import main; main(sys.argv[2:])"
IDENTITIES = ("init", "user", "root")
HERE = GuestDefaults(workdir="/", env={"PATH": "/usr/bin:/bin"})


class ControllerProcess:
    """`argv` is another child in place of the guest; its line is its standard input and output. `first`: its end of the
    socket of the service that starts it."""

    def __init__(
        self, directory: Path, argv: list[str] | None = None, *, first: socket.socket | None = None, **fields: Any
    ) -> None:
        self.name = f"paddock_test_{secrets.token_hex(8)}"
        child = {"argv": argv or [sentry(directory)]}
        config = {"name": self.name, "identities": IDENTITIES, "driver": "plain", "options": child, **fields}
        told = json.dumps({**config, "fatal_imports": True})
        command = [sys.executable, "-I", "-S", "-c", _START, str(Path(package(directory)).parents[1]), told]
        self.process = subprocess.Popen(command, env={}, stdin=subprocess.DEVNULL if first is None else first)

    async def begin(self) -> None:
        """The guest has an agent for `user` and one for `root`, who is the same user here."""
        init = self.dial("init")
        for name in ("user", "root"):
            user = User(name=name, uid=os.getuid(), gid=os.getgid(), home="/")
            await init.open(orders.identity(name, user, filter=b"")).call(EmptyBody)
        await init.open(orders.begin(deadline=1e9, idle=0.0, retention=0.0, limits={})).call(EmptyBody)
        init.close()

    def hand(self, say: str) -> socket.socket:
        """Our end of a socket that the controller has been given."""
        ours, theirs = socket.socketpair()
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            while True:
                try:
                    sender.connect(b"\0" + self.name.encode())
                    break
                except ConnectionRefusedError:
                    assert self.process.poll() is None, "the controller has ended"
                    os.sched_yield()
            socket.send_fds(sender, [say.encode()], [theirs.fileno()])
        return ours

    def dial(self, say: str) -> GuestConnection:
        connection = GuestConnection(self.hand(say), HERE)
        connection.descriptors = False
        return connection

    async def control(self, op: str, **fields: Any) -> dict[str, Any]:
        control = Control(self.hand("control"))
        try:
            return await control.call(op, dict, **fields)
        finally:
            control.close()

    async def ping(self, say: str) -> int:
        """Who answers."""
        connection = self.dial(say)
        try:
            return (await connection.open(PING).call(PingReply)).pid
        finally:
            connection.close()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def sentry(directory: Path) -> str:
    """The program, by the name that it is given behind a sentry."""
    place = directory / "sentry"
    if not place.exists():
        shutil.copy(program(), place)
    return str(place)


async def start(connection, *argv, **fields):
    return await start_foreground(connection, ExecSpec(argv=argv, **fields), ExecId(mint(IdPrefix.EXEC)), None)


async def _read_all(reader):
    parts = []
    while data := await reader.read():
        parts.append(data)
    return b"".join(parts)


async def collect(handle):
    out, err = await asyncio.gather(_read_all(handle.stdout), _read_all(handle.stderr))
    status = await handle.wait()
    await handle.aclose()
    return status, out, err


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
