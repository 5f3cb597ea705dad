from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from paddock.backends._guest import GuestConnection
from tests.guest.agents import AgentProcess, connected


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
