"""Secrets on their way through: the placeholder becomes the value for the server that it is bound to, and never comes
back as the value; approvals are asked of the exact request."""

from __future__ import annotations

import asyncio
import base64
import gzip
import random
from collections.abc import Coroutine

import pytest
from msgspec.structs import replace

from paddock.gateway.protocols.replacer import Replacer, UnescapedReplacer
from paddock.gateway.rules.secrets import BoundSecret
from paddock.model import ApprovalAnswer, ApprovalState, Binding, SecretValue
from paddock.model.egress import Tier
from tests.gateway import h2_peers
from tests.gateway.rig import Policy, Rig, get, running

HEAD = b"\r\n\r\n"
PLACEHOLDER, VALUE = "pdk_0123456789abcdef", b"sk-the-real-value-0123"


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says back, as the body, all that it was sent."""
    try:
        while head := await reader.readuntil(HEAD):
            body = b""
            for line in head.split(b"\r\n"):
                if line.lower().startswith(b"content-length:"):
                    body = await reader.readexactly(int(line.split(b":")[1]))
                if line.lower() == b"transfer-encoding: chunked":
                    while size := int(await reader.readuntil(b"\r\n"), 16):
                        body += await reader.readexactly(size)
                        await reader.readexactly(2)
                    await reader.readuntil(b"\r\n")
            RECEIVED.append(head + body)
            said = b"\r\n".join(line for line in head.split(b"\r\n") if line) + HEAD + body
            writer.write(b"HTTP/1.1 200 OK\r\nX-Echo: %b\r\nContent-Length: %d\r\n\r\n" % (VALUE, len(said)) + said)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


RECEIVED: list[bytes] = []


async def through(work: object, *, secrets: tuple[str, ...] = ("KEY",)) -> Rig:
    RECEIVED.clear()
    world = Rig(Policy({"a.test": Tier.INSPECT, "b.test": Tier.INSPECT}))
    world.names = {"a.test": ["127.0.0.1"], "b.test": ["127.0.0.1"]}
    world.policy.secrets = secrets
    async with running(world):
        port = await world.server(echo, tls="a.test")
        bindings = tuple(
            Binding(host="a.test", port=port, **where)
            for where in ({"header": "authorization"}, {"basic": True}, {"body": True}, {"query": "key"})
        )
        bound = BoundSecret(name="KEY", placeholder=PLACEHOLDER, bindings=bindings, value=SecretValue(VALUE))
        network = world.gateway.networks["sb_1"]
        network.secrets.put(bound)
        world.aim("a.test", port)
        await work(world, port)  # pyright: ignore[reportCallIssue]
    return world


def test_a_value_goes_in_a_header_and_does_not_come_back() -> None:
    async def work(world: Rig, port: int) -> None:
        basic = base64.b64encode(f"me:{PLACEHOLDER}".encode()).decode()
        for sent, expected in (
            (f"Bearer {PLACEHOLDER}", b"Bearer " + VALUE),
            (f"Basic {basic}", b"Basic " + base64.b64encode(b"me:" + VALUE)),
        ):
            head = f"GET /a HTTP/1.1\r\nHost: a.test:{port}\r\nAuthorization: {sent}\r\nConnection: close\r\n\r\n"
            reply = await world.ask(head.encode(), tls="a.test")
            assert b"Authorization: " + expected in RECEIVED[-1]
            assert VALUE not in reply
            assert base64.b64encode(b"me:" + VALUE) not in reply
            assert reply.startswith(b"HTTP/1.1 200 OK")
            assert PLACEHOLDER.encode() in reply

    asyncio.run(through(work))


@pytest.mark.parametrize("h2", [False, True])
def test_no_piece_of_an_answer_is_asked_for_and_an_escaped_value_does_not_come_back(*, h2: bool) -> None:
    escaped = b"".join(b"\\u%04x" % byte for byte in VALUE)

    async def escapes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        RECEIVED.append(await reader.readuntil(HEAD))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(escaped) + escaped[:50])
        await writer.drain()
        writer.write(escaped[50:])
        writer.close()

    async def work(world: Rig, _: int) -> None:
        port = await world.server(escapes, tls="a.test")
        world.aim("a.test", port)
        binding = Binding(host="a.test", port=port, header="authorization")
        world.secrets.put(
            BoundSecret(name="KEY", placeholder=PLACEHOLDER, bindings=(binding,), value=SecretValue(VALUE))
        )
        fields = {"authorization": PLACEHOLDER, "range": "bytes=0-3", "if-range": '"x"'}
        if h2:
            more = [(name.encode(), value.encode()) for name, value in fields.items()]
            asked = h2_peers.request(f"a.test:{port}", "/a", "GET", *more)
            said = bytes((await (await h2_peers.client(world, "a.test")).ask(asked)).body)
        else:
            lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            head = f"GET /a HTTP/1.1\r\nHost: a.test:{port}\r\n{lines}Connection: close\r\n\r\n"
            said = (await world.ask(head.encode(), tls="a.test")).partition(HEAD)[2]
        assert VALUE in RECEIVED[0]
        assert b"range" not in RECEIVED[0].lower()
        assert said == PLACEHOLDER.encode().ljust(len(escaped), b"*")

    asyncio.run(through(work))


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_a_value_goes_in_a_body_whose_length_is_told_anew(*, chunked: bool, large: bool) -> None:
    async def work(world: Rig, port: int) -> None:
        body = b'{"pad": "' + b"x" * (2_000_000 if large else 10) + b'", "key": "' + PLACEHOLDER.encode() + b'"}'
        kind = "Content-Type: application/json\r\n"
        framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
        head = f"POST /a HTTP/1.1\r\nHost: a.test:{port}\r\n{kind}{framing}\r\nConnection: close\r\n\r\n".encode()
        reader, writer = await world.connect("a.test")
        if chunked:
            body_on_wire = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (body[:-9], body[-9:])) + b"0\r\n\r\n"
        else:
            body_on_wire = body
        writer.write(head + body_on_wire[:-7])
        await writer.drain()
        writer.write(body_on_wire[-7:])
        reply = await reader.read()
        writer.close()
        assert reply.startswith(b"HTTP/1.1 200 OK")
        assert RECEIVED[0].partition(HEAD)[2] == body.replace(PLACEHOLDER.encode(), VALUE)
        assert VALUE not in reply

    asyncio.run(through(work))


def test_a_value_in_a_compressed_answer_does_not_come_back() -> None:
    async def work(world: Rig, port: int) -> None:
        async def squeezed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(HEAD)
            assert b"br" not in head
            body = gzip.compress(b"it is " + VALUE)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            writer.close()

        other = await world.server(squeezed, tls="a.test")
        world.aim("a.test", other)
        head = f"GET / HTTP/1.1\r\nHost: a.test:{other}\r\nAccept-Encoding: br, gzip\r\nConnection: close\r\n\r\n"
        reply = await world.ask(head.encode(), tls="a.test")
        assert b"it is " in reply
        assert VALUE not in reply
        assert b"Content-Encoding" not in reply

    asyncio.run(through(work))


@pytest.mark.parametrize("h2", [False, True])
@pytest.mark.parametrize("field", [b"content-encoding", b"content-length"])
def test_an_error_that_quotes_an_answer_tells_no_value(field: bytes, *, h2: bool) -> None:
    async def serve(peer: h2_peers.Peer, number: int, _: h2_peers.Message) -> None:
        peer.engine.config.validate_outbound_headers = False
        peer.engine.send_headers(number, [(b":status", b"200"), (field, VALUE)], end_stream=True)
        peer.flush()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(HEAD)
        writer.write(b"HTTP/1.1 200 OK\r\n%b: %b\r\n\r\n" % (field, VALUE))
        writer.close()

    async def work(world: Rig, _: int) -> None:
        port = await (h2_peers.origin(world, "a.test", serve) if h2 else world.server(one, tls="a.test"))
        world.aim("a.test", port)
        peer = await h2_peers.client(world, "a.test")
        answer = await peer.ask(h2_peers.request(f"a.test:{port}"))
        assert answer.status == 502
        told = repr((answer, world.audit_log.outcomes, [verdict for _, verdict in world.audit_log.decisions]))
        assert VALUE.decode() not in told
        assert b"rule: " in answer.body
        peer.writer.close()

    asyncio.run(through(work))


def rounds_of(
    of: type, monkeypatch: pytest.MonkeyPatch, method: str = "feed"
) -> tuple[list[tuple[int, int]], Coroutine[None, None, None]]:
    """Note the round of the loop and the size at each call with much data. Return the notes, and a task that counts."""
    rounds, taken, feed = [0], list[tuple[int, int]](), getattr(of, method)

    async def count() -> None:
        while True:
            rounds[0] += 1
            await asyncio.sleep(0)

    def note(self: object, data: bytes) -> bytes:
        if len(data) > 500:
            taken.append((rounds[0], len(data)))
        return feed(self, data)

    monkeypatch.setattr(of, method, note)
    return taken, count()


def test_heads_of_answers_are_searched_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, count = rounds_of(UnescapedReplacer, monkeypatch, "whole")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(HEAD)
        waiting.append(writer)
        if len(waiting) == 8:
            for each in waiting:
                each.write(b"HTTP/1.1 200 OK\r\nX: %b\r\nContent-Length: 0\r\n\r\n" % (b"%41" * 10_000))
                each.close()

    async def work(world: Rig, _: int) -> None:
        port = await world.server(serve, tls="a.test")
        world.aim("a.test", port)
        counting = asyncio.get_running_loop().create_task(count)
        await asyncio.gather(*(world.ask(get(f"a.test:{port}"), tls="a.test") for _ in range(8)))
        counting.cancel()
        assert len({when for when, _ in taken}) == len(taken) == 8

    waiting: list[asyncio.StreamWriter] = []
    asyncio.run(through(work))


LONG = b"".join(b"%41" * 700 + random.Random(n).randbytes(18) for n in range(500))


@pytest.mark.parametrize("bound", [True, False])
@pytest.mark.parametrize("chunked", [True, False])
def test_what_a_compressed_body_becomes_is_searched_in_turns(
    *, bound: bool, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = gzip.compress(LONG + (PLACEHOLDER.encode() if bound else b""))

    async def work(world: Rig, port: int) -> None:
        taken, count = rounds_of(Replacer, monkeypatch)
        counting = asyncio.get_running_loop().create_task(count)
        framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(packed)}"
        head = f"POST /a HTTP/1.1\r\nHost: a.test:{port}\r\nContent-Type: application/json\r\n{framing}\r\n"
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(packed), packed) if chunked else packed
        await world.ask(f"{head}Content-Encoding: gzip\r\nConnection: close\r\n\r\n".encode() + body, tls="a.test")
        counting.cancel()
        assert gzip.decompress(RECEIVED[0].partition(HEAD)[2]) == LONG + (VALUE if bound else b"")
        plain = [when for when, size in taken if size > 20_000]
        assert sum(size for _, size in taken) >= len(LONG)
        assert max(size for _, size in taken) <= 64 << 10
        assert len(set(plain)) == len(plain) >= len(LONG) >> 16

    asyncio.run(through(work, secrets=("KEY",) if bound else ()))


@pytest.mark.parametrize("framing", [b"Transfer-Encoding: chunked", b"Content-Length: %d", b"Connection: close"])
def test_what_a_compressed_answer_becomes_is_searched_in_turns(framing: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = LONG + VALUE
    packed = gzip.compress(plain)

    async def squeezed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(HEAD)
        kind, is_chunked = framing.replace(b"%d", b"%d" % len(packed)), b"chunked" in framing
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n%b\r\n\r\n" % kind)
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(packed), packed) if is_chunked else packed)
        writer.close()

    async def work(world: Rig, _: int) -> None:
        port = await world.server(squeezed, tls="a.test")
        world.aim("a.test", port)
        taken, count = rounds_of(UnescapedReplacer, monkeypatch)
        counting = asyncio.get_running_loop().create_task(count)
        reply = await world.ask(get(f"a.test:{port}").replace(b"1.1", b"1.0"), tls="a.test")
        counting.cancel()
        assert reply.partition(HEAD)[2] == plain.replace(VALUE, PLACEHOLDER.encode().ljust(len(VALUE), b"*"))
        assert max(size for _, size in taken) <= 64 << 10
        assert len({when for when, _ in taken}) == len(taken)

    asyncio.run(through(work))


@pytest.mark.parametrize("h2", [False, True])
def test_a_value_comes_back_in_no_part_of_a_head_and_in_no_trailer(*, h2: bool) -> None:
    async def leak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(HEAD)
        field = b"X-%b: 1\r\nX-Kept: a %b z\r\n" % (VALUE, VALUE)
        writer.write(b"HTTP/1.1 103 %b\r\n%b\r\n" % (VALUE, field))
        writer.write(b"HTTP/1.1 200 %b\r\n%bTransfer-Encoding: chunked\r\n\r\n" % (VALUE, field))
        writer.write(b"2\r\nok\r\n0\r\n%b\r\n" % field)
        writer.close()

    async def work(world: Rig, _: int) -> None:
        port = await world.server(leak, tls="a.test")
        world.aim("a.test", port)
        if h2:
            answer = await (await h2_peers.client(world, "a.test")).ask(h2_peers.request(f"a.test:{port}"))
            said = repr((answer.interim, answer.fields, answer.body, answer.trailers)).encode()
            assert len(answer.interim) == 1
        else:
            said = await world.ask(get(f"a.test:{port}"), tls="a.test")
            assert said.startswith(b"HTTP/1.1 103 " + PLACEHOLDER.encode()[:20])
        assert b"ok" in said
        assert VALUE not in said.lower()
        assert said.lower().count(b"x-kept") == said.count(b"a " + PLACEHOLDER.encode()) == 3

    asyncio.run(through(work))


@pytest.mark.parametrize(
    ("secrets", "line", "field"),
    [
        ((), "GET /a", f"Authorization: Bearer {PLACEHOLDER}"),
        (("KEY",), "GET /a", f"X-Other: {PLACEHOLDER}"),
        (("KEY",), f"GET /{PLACEHOLDER}", "X: 1"),
        (("KEY",), f"GET /a?other={PLACEHOLDER}", "X: 1"),
    ],
)
def test_a_placeholder_goes_nowhere_else(secrets: tuple[str, ...], line: str, field: str) -> None:
    async def work(world: Rig, port: int) -> None:
        head = f"{line} HTTP/1.1\r\nHost: a.test:{port}\r\n{field}\r\nConnection: close\r\n\r\n"
        reply = await world.ask(head.encode(), tls="a.test")
        assert reply.startswith(b"HTTP/1.1 403 ")
        assert b"KEY" in reply
        assert RECEIVED == []
        assert world.resolved == []

    asyncio.run(through(work, secrets=secrets))


def test_a_placeholder_late_in_a_body_ends_the_request() -> None:
    async def work(world: Rig, port: int) -> None:
        world.policy.secrets = ()
        reader, writer = await world.connect("a.test")
        writer.write(f"POST /a HTTP/1.1\r\nHost: a.test:{port}\r\nContent-Length: 500000\r\n\r\n".encode())
        writer.write(b"x" * 200_000)
        await writer.drain()
        writer.write(PLACEHOLDER.encode() + b"x" * 1000)
        assert (await reader.readuntil(HEAD)).startswith(b"HTTP/1.1 403 ")
        writer.close()
        assert RECEIVED == []

    asyncio.run(through(work))


def test_rotation_and_revocation_hold_for_the_next_request() -> None:
    async def work(world: Rig, port: int) -> None:
        reader, writer = await world.connect("a.test")
        ask = f"GET / HTTP/1.1\r\nHost: a.test:{port}\r\nAuthorization: {PLACEHOLDER}\r\n\r\n".encode()

        async def status() -> bytes:
            writer.write(ask)
            head = await reader.readuntil(HEAD)
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            return head.split(b" ")[1]

        assert await status() == b"200"
        before = world.secrets._bound["KEY"]
        world.secrets.put(replace(before, value=SecretValue(b"sk-another-value-4567")))
        assert await status() == b"200"
        assert b"sk-another-value-4567" in RECEIVED[-1]
        world.secrets.put(replace(before, value=None))
        assert await status() == b"424"
        assert len(RECEIVED) == 2
        writer.close()

    asyncio.run(through(work))


def test_an_approval_is_of_exactly_this_request() -> None:
    async def work(world: Rig, port: int) -> None:
        world.policy.approve = "host"
        post = f"POST /pay HTTP/1.1\r\nHost: a.test:{port}\r\nContent-Length: 5\r\nConnection: close\r\n\r\n".encode()
        reply = await world.ask(post + b"ten $", tls="a.test")
        assert reply.startswith(b"HTTP/1.1 403 ")
        assert b"approval_id: ap_1" in reply
        assert RECEIVED == []
        await world.ask(post + b"900 $", tls="a.test")
        first, second = world.approvals.asked
        assert (first.sandbox, first.instance_id, first.revision, first.kind) == ("sb_1", 1, "r1", "host")
        assert first.digest != second.digest
        world.approvals.answer = ApprovalAnswer(granted=True, id="ap_1", state=ApprovalState.USED)
        reply = await world.ask(post + b"ten $", tls="a.test")
        assert reply.startswith(b"HTTP/1.1 200 ")
        assert world.approvals.asked[2].digest == first.digest
        assert RECEIVED[0].endswith(b"ten $")
        world.approvals.answer = ApprovalAnswer(granted=False, state=ApprovalState.DENIED, reason="no")
        assert b"not approved: no" in await world.ask(get(f"a.test:{port}"), tls="a.test")

    asyncio.run(through(work))
