"""A real pilot as a process of its own, and behind it the guest, with no further wall."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from paddock.backends._guest import GuestConnection
from tests.guest.agents import SRC

GUEST = SRC / "paddock" / "guest"
IDENTITIES = ("init", "user", "root")


class PilotProcess:
    """`argv` is another child in place of the guest; its lines are 3, 4 and 5. `first`: its end of the socket of the
    service that starts it."""

    def __init__(
        self, directory: Path, argv: list[str] | None = None, *, first: socket.socket | None = None, **fields: Any
    ) -> None:
        self.name = f"paddock_test_{secrets.token_hex(8)}"
        streams = {name: number for number, name in enumerate(IDENTITIES, 3)}
        child = {"argv": argv or guest_command(directory, streams), "streams": streams}
        config = {"name": self.name, "identities": IDENTITIES, "child": child, **fields}
        command = [sys.executable, "-I", "-S", str(GUEST), json.dumps({"pilot": config, "fatal_imports": True})]
        self.process = subprocess.Popen(command, env={}, stdin=subprocess.DEVNULL if first is None else first)

    def hand(self, say: str) -> socket.socket:
        """Our end of a socket that the pilot has been given."""
        ours, theirs = socket.socketpair()
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            while True:
                try:
                    sender.connect(b"\0" + self.name.encode())
                    break
                except ConnectionRefusedError:
                    assert self.process.poll() is None, "the pilot has ended"
                    os.sched_yield()
            socket.send_fds(sender, [say.encode()], [theirs.fileno()])
        return ours

    def dial(self, say: str) -> GuestConnection:
        connection = GuestConnection(self.hand(say))
        connection.descriptors = False
        return connection

    async def ask(self, say: str, **request: Any) -> dict[str, Any]:
        connection = self.dial(say)
        try:
            return await connection.open(request).call(dict)
        finally:
            connection.close()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def guest_command(directory: Path, streams: dict[str, int]) -> list[str]:
    (directory / "work").mkdir(exist_ok=True)
    agent = {
        "user": {"name": "user", "uid": os.getuid(), "gid": os.getgid()},
        "workdir": str(directory / "work"),
        "exec_dir": str(directory / "execs"),
        "env": {"PATH": "/usr/bin:/bin"},
    }
    config = {
        "streams": {name: [number, number] for name, number in streams.items()},
        "agents": {"user": agent, "root": {**agent, "exec_dir": str(directory / "root")}},
        "deadline": 1e15,
        "fatal_imports": True,
    }
    return [sys.executable, "-I", "-S", str(GUEST), json.dumps(config)]
