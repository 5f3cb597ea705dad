"""The guest's doors: callers inside are put through to the host, and a door is open while the host attends to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from paddock.backends._guest import GuestConnection
from paddock.backends._guest_ports import PortStream, accept
from paddock.errors import FileError, SandboxError
from tests.guest.agents import AgentProcess, connected
from tests.orphans import wait_until

Run = Callable[[Callable[[GuestConnection], Awaitable[None]]], None]


async def opened(agent: AgentProcess, connection: GuestConnection, name: str = "door") -> asyncio.Task[PortStream]:
    """Somebody who waits at that door, which is there when this returns."""
    waiting = asyncio.ensure_future(accept(connection, f"{agent.home}/{name}"))
    await asyncio.sleep(0)
    await connection.open({"op": "ping"}).call(dict)  # requests are served in their order
    return waiting


def test_callers_are_put_through_one_after_the_other_both_ways(agent: AgentProcess, run: Run) -> None:
    async def body(connection: GuestConnection) -> None:
        door = agent.home / "door"
        first, second = await opened(agent, connection), await opened(agent, connection)
        assert door.stat().st_mode & 0o777 == 0o600
        reader, writer = await asyncio.open_unix_connection(door)
        writer.write(b"question")
        stream = await first
        assert await stream.read() == b"question"
        await stream.write(b"answer")
        await stream.write_eof()
        assert await reader.read() == b"answer"
        writer.close()
        assert await stream.read() == b""
        later, its_writer = await asyncio.open_unix_connection(door)
        other = await second
        await other.aclose()
        assert await later.read() == b""
        its_writer.close()
        for one in (stream, other):
            await one.aclose()

    run(body)


def test_a_door_goes_with_the_last_who_attends_to_it_and_one_that_was_put_there_gives_way(
    agent: AgentProcess, run: Run
) -> None:
    door = agent.home / "door"
    door.write_text("in the way")

    async def body(connection: GuestConnection) -> None:
        waiting = [await opened(agent, connection), await opened(agent, connection)]
        assert door.is_socket()
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])
        await connection.open({"op": "ping"}).call(dict)
        assert door.is_socket()

    run(body)  # at its end the host has gone
    assert wait_until(lambda: not door.exists())


def test_a_door_that_cannot_be_made_is_refused_and_so_are_too_many(agent: AgentProcess, run: Run) -> None:
    (agent.home / "directory" / "full").mkdir(parents=True)

    async def body(connection: GuestConnection) -> None:
        for path in (f"{agent.home}/directory", f"{agent.home}/no/where", f"{agent.home}/{'x' * 120}"):
            with pytest.raises(FileError):
                await accept(connection, path)
        waiting = [await opened(agent, connection, f"door{number}") for number in range(8)]
        with pytest.raises(SandboxError, match="doors"):
            await accept(connection, f"{agent.home}/one-more")
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)
        last = await opened(agent, connection)
        last.cancel()

    run(body)


def test_whoever_comes_while_nobody_waits_is_put_through_to_the_next(agent: AgentProcess) -> None:
    async def main() -> None:
        async with connected(agent) as connection:
            first = await opened(agent, connection)
            talk = await asyncio.open_unix_connection(agent.home / "door")
            stream = await first  # the door is open while it is served
            another = await asyncio.open_unix_connection(agent.home / "door")
            another[1].write(b"late")
            second = await accept(connection, f"{agent.home}/door")
            assert await second.read() == b"late"
            for _, writer in (talk, another):
                writer.close()
            await stream.aclose()
            await second.aclose()

    asyncio.run(main())
