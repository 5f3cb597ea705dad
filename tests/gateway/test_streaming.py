"""What programs do with HTTP/1 works through the gateway, in bounded memory, as it does without."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable

import pytest

from paddock.gateway.proxy.stream import HIGH_WATER, SCRATCH_BYTES, Inbound
from paddock.model.egress import Tier
from tests.gateway.rig import Policy, Rig, Serve, eventually, get, running

HEAD = b"\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: a.test:%d\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"


async def exchange(serve: Serve, talk: Callable[[Rig, int], object], *, tls: bool = False) -> Rig:
    world = Rig(Policy({"a.test": Tier.INSPECT}))
    world.names = {"a.test": ["127.0.0.1"]}
    async with running(world):
        port = await world.server(serve, tls="a.test" if tls else None)
        world.aim("a.test", port)
        await talk(world, port)  # pyright: ignore[reportGeneralTypeIssues]
    return world


def answering(answer: bytes, *, seen: list[bytes] | None = None) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(HEAD)
        if seen is not None:
            seen.append(head)
        writer.write(answer)
        writer.close()

    return serve


def test_a_body_of_any_size_goes_up_and_down() -> None:
    size = 24 << 20
    digests: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(HEAD)
        digest = hashlib.sha256()
        left = size
        while left:
            data = await reader.read(min(left, 1 << 16))
            digest.update(data)
            left -= len(data)
        digests.append(digest.hexdigest())
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for at in range(0, size, 1 << 16):
            piece = at.to_bytes(8, "big") * (1 << 13)
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\nX-Sum: 1\r\n\r\n")
        writer.close()

    async def talk(world: Rig, port: int) -> None:
        reader, writer = await world.connect("a.test")
        writer.write(f"PUT /x HTTP/1.1\r\nHost: a.test:{port}\r\nContent-Length: {size}\r\n\r\n".encode())
        digest = hashlib.sha256()
        for at in range(0, size, 1 << 16):
            piece = at.to_bytes(8, "big") * (1 << 13)
            digest.update(piece)
            writer.write(piece)
            await writer.drain()
        assert b"Transfer-Encoding: chunked" in await reader.readuntil(HEAD)
        got = hashlib.sha256()
        while length := int(await reader.readuntil(b"\r\n"), 16):
            got.update(await reader.readexactly(length))
            await reader.readexactly(2)
        assert await reader.readuntil(HEAD) == b"X-Sum: 1\r\n\r\n"
        assert digests == [digest.hexdigest()]
        assert got.hexdigest() == digest.hexdigest()
        writer.close()

    asyncio.run(exchange(serve, talk, tls=True))


def test_who_does_not_read_stops_the_other_side() -> None:
    """Nothing piles up in the gateway: the server can't get rid of more than the buffers on the way hold."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(HEAD)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 40))
        try:
            while True:
                writer.write(bytes(1 << 16))
                await writer.drain()
        except ConnectionError:
            pass

    async def talk(world: Rig, port: int) -> None:
        reader, writer = await world.connect()
        writer.write(get(f"a.test:{port}"))
        await reader.readuntil(HEAD)
        writer.transport.pause_reading()  # pyright: ignore[reportAttributeAccessIssue]
        (connection,) = world.gateway.networks["sb_1"].live
        streams = [connection.client, connection.upstream]
        await eventually(lambda: streams[0].full and streams[1]._inbound is Inbound.PAUSED)
        for stream in streams:
            assert len(stream.buffer) <= HIGH_WATER + SCRATCH_BYTES
            assert stream._transport.get_write_buffer_size() <= HIGH_WATER + SCRATCH_BYTES + (1 << 12)
        writer.close()

    asyncio.run(exchange(serve, talk))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", b"a\r\nto the end\r\n0\r\n\r\n"),
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", b"a\r\nto the end\r\n0\r\n\r\n"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b""),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", None),
    ],
)
def test_forms_of_answers(answer: bytes, expected: bytes | None) -> None:
    async def talk(world: Rig, port: int) -> None:
        reply = await world.ask(get(f"a.test:{port}"))
        if expected is None:
            assert reply.startswith(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK")
        else:
            assert reply.partition(HEAD)[2] == expected

    asyncio.run(exchange(answering(answer), talk))


def test_head_tells_a_length_and_sends_nothing() -> None:
    async def talk(world: Rig, port: int) -> None:
        reply = await world.ask(f"HEAD / HTTP/1.1\r\nHost: a.test:{port}\r\nConnection: close\r\n\r\n".encode())
        assert b"Content-Length: 7\r\n" in reply
        assert reply.endswith(HEAD)

    asyncio.run(exchange(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n"), talk))


def test_a_client_of_http_1_0_gets_an_end_instead_of_chunks() -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"

    async def talk(world: Rig, port: int) -> None:
        reply = await world.ask(f"GET / HTTP/1.0\r\nHost: a.test:{port}\r\n\r\n".encode())
        assert reply.partition(HEAD)[2] == b"ok"
        assert b"chunked" not in reply

    asyncio.run(exchange(answering(answer), talk))


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"SSH-2.0-server\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"",
    ],
)
def test_an_answer_that_is_none_is_said_to_be_none(answer: bytes) -> None:
    async def talk(world: Rig, port: int) -> None:
        reply = await world.ask(get(f"a.test:{port}"))
        assert reply.startswith(b"HTTP/1.1 502 Bad Gateway ")
        assert world.audit_log.outcomes[len(world.audit_log.decisions) - 2][2]

    asyncio.run(exchange(answering(answer), talk))


def test_half_an_answer_is_seen_to_be_half() -> None:
    async def talk(world: Rig, port: int) -> None:
        with pytest.raises(ConnectionResetError):
            await world.ask(get(f"a.test:{port}"))

    asyncio.run(exchange(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"), talk))


def test_a_server_that_says_continue() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"Expect: 100-continue" in await reader.readuntil(HEAD)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(5)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + body)
        writer.close()

    async def talk(world: Rig, port: int) -> None:
        reader, writer = await world.connect()
        head = f"POST / HTTP/1.1\r\nHost: a.test:{port}\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
        writer.write(head.encode())
        assert await reader.readuntil(HEAD) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hello")
        await reader.readuntil(HEAD)
        assert await reader.readexactly(5) == b"hello"
        writer.close()

    asyncio.run(exchange(serve, talk))


def test_an_early_answer_ends_an_upload() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(HEAD)
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        await reader.read()
        writer.close()

    async def talk(world: Rig, port: int) -> None:
        reader, writer = await world.connect()
        writer.write(f"POST / HTTP/1.1\r\nHost: a.test:{port}\r\nContent-Length: 999999\r\n\r\nsome".encode())
        assert (await reader.readuntil(HEAD)).startswith(b"HTTP/1.1 413")
        assert await reader.read() == b""
        writer.close()

    asyncio.run(exchange(serve, talk))


def test_a_malformed_body_goes_no_further() -> None:
    got = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                got.extend(data)
        except ConnectionError:
            pass
        writer.close()

    async def talk(world: Rig, port: int) -> None:
        reader, writer = await world.connect()
        writer.write(CHUNKED % port)
        await eventually(lambda: b"ok" in got)
        writer.write(b"2;smuggled=1\r\nno\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n")
        assert (await reader.readuntil(HEAD)).startswith(b"HTTP/1.1 400 ")
        writer.close()

    asyncio.run(exchange(serve, talk))
    assert got.endswith(b"2\r\nok\r\n")


def test_events_come_as_they_are_sent() -> None:
    go_on = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(HEAD)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        await go_on.wait()
        writer.write(b"data: 2\n\n")
        writer.close()

    async def talk(world: Rig, port: int) -> None:
        reader, writer = await world.connect("a.test")
        writer.write(get(f"a.test:{port}"))
        await reader.readuntil(b"data: 1\n\n")
        go_on.set()
        await reader.readuntil(b"data: 2\n\n")
        writer.close()

    asyncio.run(exchange(serve, talk, tls=True))


def test_a_websocket_is_judged_as_a_request_and_then_passed_on() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(HEAD)
        assert b"Connection: Upgrade\r\nUpgrade: websocket\r\n" in head
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x02hi")
        assert await reader.readexactly(4) == b"\x81\x02yo"
        writer.write(b"\x88\x00")
        writer.close()

    async def talk(world: Rig, port: int) -> None:
        reader, writer = await world.connect("a.test")
        upgrade = (
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n"
        )
        writer.write(f"GET /ws HTTP/1.1\r\nHost: a.test:{port}\r\n{upgrade}\r\n".encode())
        assert (await reader.readuntil(HEAD)).startswith(b"HTTP/1.1 101 ")
        assert await reader.readexactly(4) == b"\x81\x02hi"
        writer.write(b"\x81\x02yo")
        assert await reader.read() == b"\x88\x00"
        writer.close()

    world = asyncio.run(exchange(serve, talk, tls=True))
    assert [flow.method for flow, _ in world.audit_log.of("request")] == ["GET"]


def test_a_connection_that_the_server_ended_meanwhile_is_made_anew() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(HEAD)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")  # says nothing of the end, and ends
        await writer.drain()
        await reader.read(1)
        writer.close()

    async def talk(world: Rig, port: int) -> None:
        reader, writer = await world.connect()
        for _ in range(4):
            writer.write(get(f"a.test:{port}", close=False))
            await reader.readuntil(HEAD)
            assert await reader.readexactly(2) == b"ok"
        writer.close()

    asyncio.run(exchange(serve, talk))


def test_who_leaves_takes_the_upstream_along() -> None:
    async def work() -> None:
        left = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(HEAD)
            try:
                await reader.read()
            except ConnectionError:
                pass
            left.set()
            writer.close()

        async def talk(world: Rig, port: int) -> None:
            _, writer = await world.connect()
            writer.write(get(f"a.test:{port}"))
            await eventually(lambda: world.audit_log.of("dial"))
            writer.close()
            await asyncio.wait_for(left.wait(), 30)

        await exchange(serve, talk)

    asyncio.run(work())
