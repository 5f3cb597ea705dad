"""HTTP/2 from a client that means harm: refused in words where there is a stream to say it on, told to go where not."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
)

from paddock.gateway.protocols import http2
from paddock.gateway.proxy.connection import H2Streams
from paddock.model.egress import Tier
from tests.gateway.h2_peers import Fields, Message, Peer, client, echo, origin, request
from tests.gateway.rig import Policy, Rig, eventually, get, running

Work = Callable[[Rig, Peer, str], Awaitable[None]]
SEEN: list[Message] = []


def through(work: Work) -> Rig:
    SEEN.clear()

    async def serve(peer: Peer, number: int, message: Message) -> None:
        SEEN.append(message)
        await echo(peer, number, message)

    async def scene() -> Rig:
        world = Rig(Policy({"a.test": Tier.INSPECT}))
        world.names = {"a.test": ["127.0.0.1"]}
        async with running(world):
            port = await origin(world, "a.test", serve)
            world.aim("a.test", port)
            peer = await client(world, "a.test")
            await work(world, peer, f"a.test:{port}")
            peer.writer.close()
            await peer.closed.wait()
            await eventually(lambda: not world.gateway.networks["sb_1"].live)
            assert world.gateway.networks["sb_1"].streams == 0
            other = await client(world, "a.test")
            assert (await other.ask(request(f"a.test:{port}"))).status == 200
            other.writer.close()
            await other.closed.wait()
        return world

    return asyncio.run(scene())


@pytest.mark.parametrize(
    ("extra", "replaced"),
    [
        ([(b"transfer-encoding", b"chunked")], {}),
        ([(b"connection", b"x-a")], {}),
        ([(b"x", b"a\r\nHost: evil.test")], {}),
        ([(b"x", b"a\0b")], {}),
        ([(b"x\r\ny", b"a")], {}),
        ([(b"host", b"evil.test")], {}),
        ([], {b":path": b"/a HTTP/1.1\r\nHost: evil.test\r\n\r\nGET /b"}),
        ([], {b":path": b"https://evil.test/"}),
        ([], {b":scheme": b"http"}),
        ([], {b":method": b"GET /evil HTTP/1.1\r\n\r\n"}),
    ],
)
def test_no_smuggling_by_downgrade(extra: Fields, replaced: dict[bytes, bytes]) -> None:
    async def work(world: Rig, peer: Peer, host: str) -> None:
        fields = [(name, replaced.get(name, value)) for name, value in request(host)]
        refused = await peer.ask([*fields, *extra])
        assert (refused.status, SEEN) == (400, [])
        _, verdict = world.audit_log.decisions[int(refused.get(b"paddock-refusal") or b"0")]
        assert (verdict.allowed, verdict.rule) == (False, "http")
        assert (await peer.ask(request(host))).status == 200

    through(work)


def test_what_follows_a_malformed_head_does_not_hide_the_refusal() -> None:
    async def work(world: Rig, peer: Peer, host: str) -> None:
        number = peer.engine.get_next_available_stream_id()
        message = peer.streams[number] = Message()
        peer.engine.send_headers(number, [*request(host, "/a", "POST"), (b"connection", b"x")])
        peer.engine.send_data(number, b"body", end_stream=True)
        peer.flush()
        await message.ended.wait()
        assert (message.status, message.reset) == (400, None)

    through(work)


@pytest.mark.parametrize("authority", [b"evil.test", b"me@a.test", b"a.test:1", b"A.test.evil.test", b"127.0.0.1"])
def test_authority_is_the_name_of_the_hello(authority: bytes) -> None:
    async def work(world: Rig, peer: Peer, host: str) -> None:
        refused = await peer.ask([(n, authority if n == b":authority" else v) for n, v in request(host)])
        assert refused.status in (400, 421)
        assert (SEEN, world.resolved) == ([], [])

    through(work)


@pytest.mark.parametrize("protocol", [True, False])
def test_tunnels_and_websockets_are_refused_in_words(protocol: bool) -> None:
    async def work(world: Rig, peer: Peer, host: str) -> None:
        fields = [(b":method", b"CONNECT"), (b":authority", host.encode())]
        if protocol:
            fields += [(b":protocol", b"websocket"), (b":scheme", b"https"), (b":path", b"/chat")]
        _, refused = peer.begin(fields, end=False)
        await refused.ended.wait()
        assert (refused.status, b"use HTTP/1.1" in refused.body, SEEN) == (501, True, [])

    through(work)


@pytest.mark.parametrize("said", [(b"3",), (b"300",), (b"3", b"30"), (b"30, 3",), (b"+30",)])
def test_a_body_that_is_not_as_long_as_it_said(said: tuple[bytes, ...]) -> None:
    async def work(world: Rig, peer: Peer, host: str) -> None:
        lengths = [(b"content-length", one) for one in said]
        number, message = peer.begin(request(host, "/a", "POST", *lengths), end=False)
        frame = DataFrame(number, b"x" * 30)
        frame.flags.add("END_STREAM")
        peer.writer.write(frame.serialize())
        await message.ended.wait()
        assert message.status != 200
        assert all(one.body != b"x" * 30 for one in SEEN)

    through(work)


def test_trailers_do_not_end_a_body_before_its_length() -> None:
    async def work(world: Rig, peer: Peer, host: str) -> None:
        number, message = peer.begin(request(host, "/a", "POST", (b"content-length", b"300")), end=False)
        peer.engine.send_data(number, b"x" * 30)
        peer.engine.send_headers(number, [(b"x-after", b"1")], end_stream=True)
        peer.writer.write(peer.engine.data_to_send())
        await message.ended.wait()
        assert message.status != 200
        assert SEEN == [] or all(not one.ended.is_set() for one in SEEN)
        assert (await peer.ask(request(host))).status == 200

    through(work)


def frames(kind: str) -> bytes:
    head = HeadersFrame(3, b"\x82")
    if kind == "continuation":
        return head.serialize() + ContinuationFrame(3, bytes(10)).serialize() * 5000
    if kind == "bomb":  # one field in the table, named 16,000 times
        head.data = b"\x40\x01x\x7f\xe1\x1e" + b"y" * 4000 + b"\xbe" * 12_000
        head.flags |= {"END_HEADERS", "END_STREAM"}
        return head.serialize()
    one = {
        "ping": PingFrame(0),
        "settings": SettingsFrame(0),
        "priority": PriorityFrame(1, depends_on=3),
        "reset": RstStreamFrame(1),
        "data": DataFrame(1),
    }[kind]
    return one.serialize() * 5000


@pytest.mark.parametrize("kind", ["ping", "settings", "priority", "reset", "data", "continuation", "bomb"])
def test_floods_end_the_connection(kind: str) -> None:
    async def work(world: Rig, peer: Peer, host: str) -> None:
        number, _ = peer.begin(request(host, "/up", "POST"), end=False)
        assert number == 1
        peer.writer.write(frames(kind))
        await peer.closed.wait()
        assert peer.gone is None or peer.gone.error_code

    through(work)


@pytest.mark.parametrize("offered", [1 << 30, 100, 0])
def test_a_table_of_fields_stays_small_however_large_the_client_lets_it_be(offered: int) -> None:
    async def work(world: Rig, peer: Peer, host: str) -> None:
        world.policy.deny_paths = {"/no"}
        peer.engine.update_settings({1: offered})
        peer.flush()
        refusals = {(await peer.ask(request(host, "/no"))).get(b"paddock-refusal") for _ in range(150)}
        assert len(refusals) == 150
        (connection,) = world.gateway.networks["sb_1"].live
        assert connection._inside is not None
        table = connection._inside.engine.encoder.header_table
        assert sum(len(name) + len(value) + 32 for name, value in table.dynamic_entries) <= min(offered, 4096)

    through(work)


def test_streams_that_are_reset_at_once_end_the_connection_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "PER_SECOND", 0.0)  # else a slow machine's client resets few enough in a second

    async def work(world: Rig, peer: Peer, host: str) -> None:
        for _ in range(3000):
            if peer.closed.is_set():
                break
            number, _ = peer.begin(request(host))
            peer.engine.reset_stream(number)
            peer.flush()
            await peer.writer.drain()
        await peer.closed.wait()
        assert peer.gone is None or peer.gone.error_code

    async def suffer(world: Rig, peer: Peer, host: str) -> None:
        try:
            await work(world, peer, host)
        except ConnectionError:
            await peer.closed.wait()

    through(suffer)


def test_more_streams_than_were_offered() -> None:
    async def work(world: Rig, peer: Peer, host: str) -> None:
        peer.engine.remote_settings.max_concurrent_streams = 1000  # it does not listen
        for _ in range(150):
            peer.begin(request(host, "/up", "POST"), end=False)
        await peer.closed.wait()

    through(work)


def test_http2_in_clear_is_refused() -> None:
    async def scene() -> None:
        world = Rig(Policy({"a.test": Tier.INSPECT}))
        world.names = {"a.test": ["127.0.0.1"]}
        async with running(world):
            world.aim("a.test", 80)
            assert (await world.ask(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")).startswith(b"HTTP/1.1 400")

    asyncio.run(scene())


def test_a_client_that_agrees_on_h2_and_speaks_http1_is_told_to_go() -> None:
    async def work(world: Rig, peer: Peer, host: str) -> None:
        context = world.client_context()
        context.set_alpn_protocols(["h2"])
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port, ssl=context, server_hostname="a.test")
        writer.write(get(host))
        answer = await reader.read()
        assert b"HTTP/1.1" not in answer
        writer.close()

    through(work)


def test_who_agrees_and_says_nothing_is_not_kept() -> None:
    """The windows of a client that never reads bound what is kept for it."""

    async def work(world: Rig, peer: Peer, host: str) -> None:
        peer.engine.update_settings({4: 0})  # no window at all
        peer.flush()
        asked = [peer.begin(request(host, f"/{n}"))[1] for n in range(20)]
        await asyncio.gather(*[one.began.wait() for one in asked])
        assert [one.body for one in asked] == [b""] * 20
        peer.engine.update_settings({4: 1 << 16})
        peer.flush()
        await asyncio.gather(*[one.ended.wait() for one in asked])
        assert all(b":path=/" in one.body for one in asked)

    through(work)


def test_frames_that_came_at_once_take_turns_with_other_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, seen, opened = 0, list[int](), H2Streams.opened

    def note(self: H2Streams, *begun: Any) -> None:
        seen.append(turns)
        opened(self, *begun)

    async def work(world: Rig, peer: Peer, host: str) -> None:
        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.get_running_loop().create_task(count())
        # POST without its body, for which the server waits: the client's engine knows no stream, and takes no answer.
        fields = b"\x83\x87\x84\x41" + bytes([len(host)]) + host.encode()
        for number in range(1, 1000, 2):
            begin = HeadersFrame(number, fields, flags=["END_HEADERS"])
            peer.writer.write(begin.serialize() + RstStreamFrame(number, error_code=8).serialize())
        await eventually(lambda: len(seen) == 500)
        counting.cancel()
        assert max(Counter(seen).values()) <= 32

    monkeypatch.setattr(H2Streams, "opened", note)
    through(work)
