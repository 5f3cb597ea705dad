"""A real agent in a clean interpreter, in which every import after the start is fatal."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import paddock.guest
from paddock.backends._guest import GuestConnection
from tests import orphans

SRC = Path(paddock.guest.__file__).parent.parent.parent


class AgentProcess:
    def __init__(self, directory: Path, *, confined: bool = False) -> None:
        self.directory = directory
        self.socket = directory / "user.sock"
        self.home = directory / "home"
        self.home.mkdir()
        root = str(self.home) if confined else ""
        script = Path(__file__).with_name("agent_process.py")
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script), str(SRC), str(self.socket), str(self.home), root],
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def stop(self) -> None:
        died_by_itself = self.process.poll()
        left = orphans.descendants(self.process.pid)
        self.process.kill()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        assert died_by_itself is None, f"the agent ended with {died_by_itself}"


@asynccontextmanager
async def connected(agent: AgentProcess) -> AsyncIterator[GuestConnection]:
    connection = await GuestConnection.connect(agent.socket)
    try:
        yield connection
    finally:
        connection.close()
