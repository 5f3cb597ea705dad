"""What one sandbox can hold of the gateway is bounded, and whoever is slow is ended."""

from __future__ import annotations

import asyncio
import socket

import dns.message
import dns.rcode
import pytest

from paddock.gateway.protocols.dns import frame
from paddock.gateway.proxy.network import Limits
from paddock.model.egress import Tier
from tests.gateway.rig import Policy, Rig, answer_ok, eventually, get, running

HOSTS = {"a.test": Tier.INSPECT}
ENDED = (ConnectionResetError, asyncio.IncompleteReadError)


def rig(**limits: float) -> Rig:
    world = Rig(Policy(HOSTS), Limits(**limits))  # pyright: ignore[reportArgumentType]
    world.names = {"a.test": ["127.0.0.1"]}
    return world


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\n\r\nsome")
    try:
        await reader.read()
    except ConnectionError:
        pass
    writer.close()


def test_connections_over_the_limit_are_reset_and_counted() -> None:
    async def work() -> None:
        async with running(rig(connections=8)) as world:
            world.aim("a.test", await world.server(answer_ok))
            kept = [await world.connect() for _ in range(8)]
            network = world.gateway.networks["sb_1"]
            await eventually(lambda: len(network.live) == 8)
            for number in range(20):
                with pytest.raises(ConnectionResetError):  # maybe before it was told that it is there
                    await world.ask(b"")
                assert network.refused == number + 1
            await eventually(lambda: world.audit_log.crowds)
            for _, writer in kept:
                writer.close()
            await eventually(lambda: not network.live)
            assert (await world.ask(get(f"a.test:{world.origin[1]}"))).startswith(b"HTTP/1.1 200")
            world.audit_log.broken = True
            network.tick(asyncio.get_running_loop().time() + 60)
            world.audit_log.broken = False
            await world.gateway.close("sb_1")
            assert sum(world.audit_log.crowds) == 20, "each is recorded once"

    asyncio.run(work())


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"first_byte": 0.1}, b""),
        ({"head": 0.1}, b"GET / HTTP/1.1\r\nX: "),
        ({"head": 0.1}, b"\x16\x03\x01"),
        ({"keep_alive": 0.1}, b"GET /a HTTP/1.1\r\nHost: a.test\r\n\r\n"),
        ({"idle": 0.1}, b"GET /a HTTP/1.1\r\nHost: a.test\r\n\r\n"),
    ],
)
def test_who_says_nothing_is_ended(limits: dict[str, float], said: bytes) -> None:
    async def work() -> None:
        async with running(rig(**{"first_byte": 5, **limits})) as world:
            port = await world.server(endless if "idle" in limits else answer_ok)
            world.aim("a.test", port)
            with pytest.raises(ConnectionResetError):
                await world.ask(said.replace(b"a.test", b"a.test:%d" % port))
            await eventually(lambda: not world.gateway.networks["sb_1"].live)

    asyncio.run(work())


def test_a_server_that_says_nothing_is_told_of() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def work() -> None:
        async with running(rig(response=0.1)) as world:
            port = await world.server(silent)
            world.aim("a.test", port)
            assert (await world.ask(get(f"a.test:{port}"))).startswith(b"HTTP/1.1 504 Gateway Timeout")

    asyncio.run(work())


@pytest.mark.parametrize(
    ("names", "reason"), [({}, b"can't be resolved"), ({"a.test": ["127.0.0.1"]}, b"can't be reached")]
)
def test_a_server_that_is_not_there_is_told_of(names: dict[str, list[str]], reason: bytes) -> None:
    async def work() -> None:
        async with running(rig()) as world:
            world.names = names
            with socket.socket() as deaf:  # which nobody else listens at, either
                deaf.bind(("127.0.0.1", 0))
                port = deaf.getsockname()[1]
                world.aim("a.test", port)
                reply = await world.ask(get(f"a.test:{port}"))
            assert reply.startswith(b"HTTP/1.1 502 Bad Gateway")
            assert reason in reply

    asyncio.run(work())


def test_names_are_answered_over_udp_and_tcp() -> None:
    async def work() -> None:
        async with running(rig()) as world:
            udp_port, tcp_port = world.dns_ports
            loop = asyncio.get_running_loop()
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                await loop.sock_connect(sock, ("127.0.0.1", udp_port))
                for name, code in (("a.test", dns.rcode.NOERROR), ("evil.test", dns.rcode.NXDOMAIN)):
                    await loop.sock_sendall(sock, dns.message.make_query(name, "A").to_wire())
                    reply = dns.message.from_wire(await loop.sock_recv(sock, 4096))
                    assert reply.rcode() == code
            reader, writer = await asyncio.open_connection("127.0.0.1", tcp_port)
            query = frame(dns.message.make_query("a.test", "A").to_wire())
            writer.write(query + query)
            for _ in range(2):
                length = int.from_bytes(await reader.readexactly(2), "big")
                reply = dns.message.from_wire(await reader.readexactly(length))
                assert [str(record) for record in reply.answer[0]] == [world.synthetic("a.test")]
            writer.write(b"\xff\xff")
            with pytest.raises(ENDED):
                await reader.readexactly(1)
            writer.close()
            assert world.resolved == []  # nobody else was asked
            asked = [(flow.host, verdict.allowed) for flow, verdict in world.audit_log.of("name")]
            assert asked == [("a.test", True), ("evil.test", False)]

    asyncio.run(work())


def test_new_names_are_recorded_so_fast_and_no_faster() -> None:
    async def work() -> None:
        async with running(rig(names_per_second=2)) as world:
            network = world.gateway.networks["sb_1"]
            for number in range(200):
                network.lookup(f"n{number}.test")
            assert len(world.audit_log.of("name")) < 50
            assert isinstance(network.lookup("a.test"), str) is False

    asyncio.run(work())
