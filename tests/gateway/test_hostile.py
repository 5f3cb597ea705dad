"""Those who attack the gateway itself, from inside or as a server, get nothing of it but their own end."""

from __future__ import annotations

import asyncio
import random
import ssl
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddock.errors import UnrecordedError
from paddock.gateway.proxy import upstream
from paddock.gateway.proxy.stream import HIGH_WATER, SCRATCH_BYTES, ConnectionLost, Inbound, ProxyStream
from paddock.model.egress import RequestVerdict, Tier
from tests.gateway.hellos import client_hello
from tests.gateway.rig import Policy, Rig, answer_ok, eventually, get, running

HEAD = b"\r\n\r\n"
HOSTS = {"a.test": Tier.INSPECT}


def rig() -> Rig:
    world = Rig(Policy(HOSTS))
    world.names = {"a.test": ["127.0.0.1"]}
    return world


def test_a_server_that_says_wait_for_ever() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(HEAD)
        try:
            while True:
                writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 10)
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()

    async def work() -> None:
        async with running(rig()) as world:
            port = await world.server(serve)
            world.aim("a.test", port)
            reply = await world.ask(get(f"a.test:{port}"))
            assert reply.count(b"HTTP/1.1 103") < 100
            assert b"HTTP/1.1 502 Bad Gateway" in reply

    asyncio.run(work())


async def count_turns(turns: list[int]) -> None:
    """Count how often the loop comes round."""
    while True:
        turns[0] += 1
        await asyncio.sleep(0)


def test_requests_that_came_at_once_take_turns_with_other_connections() -> None:
    async def work() -> None:
        async with running(rig()) as world:
            world.aim("a.test", 80)
            world.policy.deny_paths = {"/a"}
            turns, seen, decide = [0], list[int](), world.policy.request

            def request(*asked: Any) -> RequestVerdict:
                seen.append(turns[0])
                return decide(*asked)

            world.policy.request = request
            counting = asyncio.get_running_loop().create_task(count_turns(turns))
            _, writer = await world.connect()
            writer.write(get("a.test:80", close=False) * 100)
            await eventually(lambda: len(seen) >= 100)
            counting.cancel()
            assert len(set(seen)) == len(seen)
            writer.close()

    asyncio.run(work())


def test_a_body_in_very_small_chunks_takes_turns_and_arrives() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = (await reader.readuntil(b"0\r\n\r\n")).partition(HEAD)[2]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\n%04d" % body.count(b"x"))
        await writer.drain()
        writer.close()

    async def work() -> None:
        async with running(rig()) as world:
            port = await world.server(serve)
            world.aim("a.test", port)
            head = f"POST /b HTTP/1.1\r\nHost: a.test:{port}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
            reply = await world.ask(head.encode() + b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n")
            assert reply.endswith(b"5000")

    asyncio.run(work())


def test_who_asks_and_asks_and_never_listens() -> None:
    """Refusals pile up in nobody's memory."""

    async def work() -> None:
        async with running(rig()) as world:
            port = await world.server(answer_ok)
            world.aim("a.test", port)
            world.policy.deny_paths = {"/a"}
            reader, writer = await world.connect()
            writer.transport.pause_reading()  # pyright: ignore[reportAttributeAccessIssue]
            asked = get(f"a.test:{port}", close=False) * 200
            network = world.gateway.networks["sb_1"]
            await eventually(lambda: network.live)
            (connection,) = network.live
            while connection.client._inbound is not Inbound.PAUSED:
                writer.write(asked)
                await asyncio.sleep(0)
            assert connection.client._transport.get_write_buffer_size() <= 2 * HIGH_WATER
            assert len(connection.client.buffer) <= HIGH_WATER + SCRATCH_BYTES
            writer.transport.abort()  # pyright: ignore[reportAttributeAccessIssue]
            assert reader.at_eof() is False

    asyncio.run(work())


class Keeping(asyncio.Transport):
    """Keeps what it is given without a copy, as the loop's own does since Python 3.12 with what it can't send yet."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[bytes | bytearray | memoryview] = []
        self.came = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.kept.append(memoryview(data))
        self.came.set()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def is_closing(self) -> bool:
        return False


def test_bytes_that_wait_to_be_sent_are_not_overwritten_by_those_of_another_sandbox() -> None:
    async def work() -> None:
        scratch, transport = memoryview(bytearray(SCRATCH_BYTES)), Keeping()
        client, server, other = (ProxyStream(scratch) for _ in range(3))
        server.connection_made(transport)
        passing = asyncio.ensure_future(client.pass_on(server))
        for data in (b"first", b"mine"):
            transport.came.clear()
            for stream, said in ((client, data), (other, b"your secret")):
                stream.get_buffer(-1)[: len(said)] = said
                stream.buffer_updated(len(said))
            await transport.came.wait()
        assert [bytes(kept) for kept in transport.kept] == [b"first", b"mine"]
        passing.cancel()

    asyncio.run(work())


def test_names_that_resolve_slowly_leave_the_resolver_to_other_sandboxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "DIAL_SECONDS", 0.2)

    async def work() -> None:
        async with running(Rig(Policy({"slow.test": Tier.INSPECT}))) as world:
            answered, asked = asyncio.Event(), list[str]()

            async def resolve(name: str) -> list[str]:
                asked.append(name)
                await answered.wait()
                return ["127.0.0.1"]

            world.resolve = resolve
            world.aim("slow.test", 80)
            replies = await asyncio.gather(*[world.ask(get("slow.test")) for _ in range(20)])
            assert all(b" 504 " in reply for reply in replies)
            assert len(asked) == 4  # which the resolver still has
            await world.gateway.open(world.network("sb_2"))
            world.origin = (world.synthetic("slow.test", "sb_2"), 80)
            assert b" 504 " in await world.ask(get("slow.test"))
            assert len(asked) == 5
            answered.set()

    asyncio.run(work())


def test_who_left_before_the_handshake_is_not_waited_for() -> None:
    async def work() -> None:
        stream = ProxyStream(memoryview(bytearray(SCRATCH_BYTES)))
        stream.buffer += client_hello("a.test")[:-1]
        stream.eof_received()
        with pytest.raises(ConnectionLost, match="within the TLS handshake"):
            await stream.shake(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    asyncio.run(work())


def test_a_policy_that_raises_lets_nothing_through() -> None:
    async def work() -> None:
        async with running(rig()) as world:
            faults: list[object] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
            origin: list[object] = []

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                origin.append(reader)
                writer.close()

            port = await world.server(serve)
            world.aim("a.test", port)
            world.policy.request = None  # pyright: ignore[reportAttributeAccessIssue]
            with pytest.raises(ConnectionResetError):
                await world.ask(get(f"a.test:{port}"))
            await eventually(lambda: world.audit_log.outcomes)
            assert origin == []
            (outcome,) = world.audit_log.outcomes.values()
            assert outcome[2] == "TypeError in the gateway"
            await eventually(lambda: faults)

    asyncio.run(work())


def test_an_outcome_that_cannot_be_recorded_ends_the_connection() -> None:
    async def work() -> None:
        async with running(rig()) as world:
            port = await world.server(answer_ok)
            world.aim("a.test", port)

            def refuse(number: int, **rest: object) -> None:
                raise UnrecordedError("the disk is full")

            world.audit_log.outcome = refuse
            reader, writer = await world.connect()
            writer.write(get(f"a.test:{port}", close=False))
            try:
                assert (await reader.read()).count(b"HTTP/1.1") <= 1
            except ConnectionResetError:
                pass
            writer.close()

    asyncio.run(work())


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([client_hello("a.test"), get("a.test"), b"CONNECT a.test:1 HTTP/1.1\r\n\r\n", b""]),
    st.binary(max_size=300),
    st.integers(0, 2**32),
)
def test_garbage_from_inside_ends_and_leaves_nothing(start: bytes, garbage: bytes, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(start + garbage)
    for _ in range(chance.randrange(4)):
        if data:
            data[chance.randrange(len(data))] = chance.randrange(256)

    async def work() -> None:
        async with running(rig()) as world:
            faults: list[object] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
            world.names = {}
            world.aim("a.test", 1)
            if chance.random() < 0.3:
                world.origin = ("198.18.0.1", 3128)
            reader, writer = await world.connect()
            writer.write(bytes(data))
            writer.write_eof()
            try:
                await reader.read()
            except ConnectionResetError:
                pass
            writer.close()
            await eventually(lambda: not world.gateway.networks["sb_1"].live)
            assert faults == []

    asyncio.run(work())


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=200), st.integers(0, 2**32))
def test_garbage_from_a_server_is_an_error_or_an_answer(garbage: bytes, seed: int) -> None:
    chance = random.Random(seed)
    heads = [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 100 \r\n\r\n"]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(HEAD)
        writer.write(chance.choice(heads) + garbage)
        writer.close()

    async def work() -> None:
        async with running(rig()) as world:
            faults: list[object] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
            port = await world.server(serve)
            world.aim("a.test", port)
            try:
                reply = await world.ask(get(f"a.test:{port}"))
                assert reply.startswith((b"HTTP/1.1 ",))
            except ConnectionResetError:
                pass
            await eventually(lambda: not world.gateway.networks["sb_1"].live)
            assert faults == []

    asyncio.run(work())


def test_all_connections_of_a_sandbox_have_one_turn_in_a_round_of_the_loop() -> None:
    """Else the next sandbox waits for a hundred connections with many small frames each."""

    async def work() -> None:
        async with running(rig()) as world:
            rounds, taken = 0, list[int]()

            async def take() -> None:
                stream = ProxyStream(world.gateway.scratch, turn=world.gateway.networks["sb_1"].turn)
                stream.take_turn()
                assert await stream.more()
                taken.append(rounds)

            tasks = [asyncio.ensure_future(take()) for _ in range(20)]
            while not all(task.done() for task in tasks):
                rounds += 1
                await asyncio.sleep(0)
            assert len(set(taken)) == 20

    asyncio.run(work())
