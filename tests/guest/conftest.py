"""A real agent in a clean interpreter, in which every import after the start is fatal."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import paddock.guest
from paddock.backends._guest import GuestConnection

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
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        assert died_by_itself is None, f"the agent ended with {died_by_itself}"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    process = AgentProcess(tmp_path)
    yield process
    process.stop()


@pytest.fixture
def run(agent: AgentProcess) -> Callable[[Callable[[GuestConnection], Awaitable[None]]], None]:
    """Runs a coroutine function over a connection to the agent."""

    def runner(body: Callable[[GuestConnection], Awaitable[None]]) -> None:
        async def main() -> None:
            async with connected(agent) as connection:
                await body(connection)

        asyncio.run(main())

    return runner


@asynccontextmanager
async def connected(agent: AgentProcess) -> AsyncIterator[GuestConnection]:
    connection = await GuestConnection.connect(agent.socket)
    try:
        yield connection
    finally:
        connection.close()
