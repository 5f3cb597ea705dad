"""A new revision holds for connections that live: what it refuses is cut at once, what it allows goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from paddock.model import Target, Verdict
from paddock.model.egress import Tier
from tests.gateway.rig import Policy, Rig, answer_ok, eventually, get, running

HEAD = b"\r\n\r\n"
BOTH = {"a.test": Tier.INSPECT, "b.test": Tier.SPLICE}


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Events that go on."""
    await reader.readuntil(HEAD)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
    try:
        await reader.read()
    except ConnectionError:
        pass
    writer.close()


async def upgraded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(HEAD)
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\ndata: 1\n\n")
    try:
        await reader.read()
    except ConnectionError:
        pass
    writer.close()


class NotOwn(Policy):
    """Allows an address unless it is this machine's."""

    def address(self, target: Target, address: str, *, own: bool = False) -> Verdict:
        return Verdict(**self._verdict(not own))


UPGRADE = "Connection: Upgrade\r\nUpgrade: websocket\r\n"


@pytest.mark.parametrize(
    ("name", "serve", "headers"),
    [("a.test", endless, ""), ("b.test", endless, ""), ("a.test", upgraded, UPGRADE), ("a.test", None, "")],
    ids=["events", "splice", "websocket", "idle"],
)
@pytest.mark.parametrize("change", ["host", "path", "address", "own", "nothing"])
def test_live_connections(name: str, serve: object, headers: str, change: str) -> None:
    async def work() -> None:
        world = Rig(Policy(BOTH))
        world.names = {"a.test": ["127.0.0.1"], "b.test": ["127.0.0.1"]}
        async with running(world):
            port = await world.server(serve or answer_ok)  # pyright: ignore[reportArgumentType]
            world.aim(name, port)
            reader, writer = await world.connect()
            ask = f"GET /a HTTP/1.1\r\nHost: {name}:{port}\r\n{headers}\r\n".encode()
            if name == "b.test":
                ask = b"{" + ask  # not HTTP
            writer.write(ask)
            await reader.readuntil(b"data: 1\n\n" if serve else HEAD)
            if serve is None:
                await reader.readuntil(HEAD)  # the echo of the request
            revised = (NotOwn if change == "own" else Policy)({} if change == "host" else BOTH, revision="r2")
            revised.deny_paths = {"/a"} if change == "path" else set()
            revised.addresses = set() if change == "address" else revised.addresses
            await world.gateway.networks["sb_1"].revise(revised)
            # A path says nothing of a splice or of what is idle; an idle connection has no address.
            cut = change == "host" or (
                serve and (change in ("address", "own") or (change == "path" and name == "a.test"))
            )
            if cut:
                with pytest.raises(ConnectionResetError):
                    await asyncio.wait_for(reader.read(), 30)
            else:
                assert not reader.at_eof()
                assert reader.exception() is None
            if serve is None and change == "path":
                writer.write(get(f"{name}:{port}"))  # authorized by the new one
                assert (await reader.readuntil(HEAD)).startswith(b"HTTP/1.1 403")
                assert world.audit_log.of("request")[-1][1].revision == "r2"
            writer.close()

    asyncio.run(work())


def test_a_connection_that_was_made_meanwhile_is_judged_by_the_new_policy_whose_address_it_is() -> None:
    async def work() -> None:
        world = Rig(Policy(BOTH))
        world.names = {"a.test": ["127.0.0.1"]}
        async with running(world):
            port = await world.server(answer_ok)
            world.aim("a.test", port)
            dial = world.gateway.dialer.dial

            async def slow(*args: Any, **more: Any) -> Any:
                upstream = await dial(*args, **more)
                world.gateway.networks["sb_1"].policy = NotOwn(BOTH, revision="r2")
                return upstream

            world.gateway.dialer.dial = slow
            reply = await world.ask(get(f"a.test:{port}"))
            assert reply.startswith(b"HTTP/1.1 403")
            assert b"the policy has changed meanwhile" in reply

    asyncio.run(work())


def test_a_hundred_live_connections_are_cut_together() -> None:
    async def work() -> None:
        world = Rig(Policy(BOTH))
        world.names = {"a.test": ["127.0.0.1"]}
        async with running(world):
            world.aim("a.test", await world.server(endless))
            pairs: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
            for _ in range(100):
                reader, writer = await world.connect()
                pairs.append((reader, writer))
                writer.write(f"GET /a HTTP/1.1\r\nHost: a.test:{world.origin[1]}\r\n\r\n".encode())
                await reader.readuntil(b"data: 1")
            await world.gateway.networks["sb_1"].revise(Policy({}, revision="r2"))
            ended = await asyncio.gather(*(reader.read() for reader, _ in pairs), return_exceptions=True)
            assert all(isinstance(one, ConnectionResetError) for one in ended)
            for _, writer in pairs:
                writer.close()
            requests = [number for number, (flow, _) in enumerate(world.audit_log.decisions) if flow.kind == "request"]
            await eventually(lambda: all(number in world.audit_log.outcomes for number in requests))
            await eventually(lambda: not world.gateway.networks["sb_1"].live)

    asyncio.run(work())


def test_a_closed_door_cuts_all() -> None:
    async def work() -> None:
        world = Rig(Policy(BOTH))
        world.names = {"a.test": ["127.0.0.1"]}
        async with running(world):
            world.aim("a.test", await world.server(endless))
            reader, writer = await world.connect()
            writer.write(f"GET /a HTTP/1.1\r\nHost: a.test:{world.origin[1]}\r\n\r\n".encode())
            await reader.readuntil(b"data: 1\n\n")
            await world.gateway.close("sb_1")
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()
            with pytest.raises(ConnectionRefusedError):
                await world.connect()

    asyncio.run(work())
