"""What a WebSocket says is looked through where the sandbox has secrets: in messages, whatever frames they come in."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Message,
    Ping,
    Pong,
    Request,
    TextMessage,
)
from wsproto.extensions import PerMessageDeflate
from wsproto.frame_protocol import FrameProtocol
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from paddock.gateway.protocols.websocket import Frame, Violation
from paddock.gateway.proxy.websocket import PIECE_BYTES, Messages
from paddock.gateway.rules.secrets import BoundSecret, SecretBook
from paddock.gateway.rules.substitution import Substitution
from paddock.model import Binding, SecretValue, Target
from paddock.model.egress import Tier
from tests.gateway.rig import Policy, Rig, authorized, running

PLACEHOLDER, VALUE = "pdk_0123456789abcdef", b"sk-the-real-value-0123"
OTHER = "pdk_fedcba9876543210"


def book(port: int) -> SecretBook:
    bound = Binding(host="a.test", port=port, body=True)
    header = Binding(host="a.test", port=port, header="authorization")
    return SecretBook(
        [
            BoundSecret(name="KEY", placeholder=PLACEHOLDER, bindings=(bound,), value=SecretValue(VALUE)),
            BoundSecret(name="OTHER", placeholder=OTHER, bindings=(header,), value=SecretValue(b"not-for-messages-77")),
        ]
    )


class Socket:
    """One end, with wsproto."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, client: bool) -> None:
        self.reader, self.writer = reader, writer
        self.ws = WSConnection(ConnectionType.CLIENT if client else ConnectionType.SERVER)
        self._events: list[object] = []

    def say(self, event: object) -> None:
        self.writer.write(self.ws.send(event))  # pyright: ignore[reportArgumentType]

    async def hear(self) -> object:
        """The next event; None: the connection has ended."""
        while not self._events:
            data = await self.reader.read(1 << 16)
            self.ws.receive_data(data or None)
            self._events += self.ws.events()
            if not data and not self._events:
                return None
        return self._events.pop(0)

    async def message(self) -> str | bytes:
        """A whole one."""
        parts: list[str | bytes] = []
        while True:
            event = await self.hear()
            assert isinstance(event, Message), event
            parts.append(event.data)
            if event.message_finished:
                return parts[0][:0].join(parts)  # type: ignore[arg-type]


Serve = Callable[[Socket, Request], Awaitable[None]]


async def echo(server: Socket, request: Request) -> None:
    server.say(AcceptConnection())
    while True:
        event = await server.hear()
        if isinstance(event, Message):
            HEARD.append(event.data)
            server.say(type(event)(data=event.data, message_finished=event.message_finished))
        elif isinstance(event, Ping):
            server.say(event.response())
        elif isinstance(event, CloseConnection):
            HEARD.append((event.code, event.reason))
            server.say(event.response())
            return
        elif event is None:
            return


HEARD: list[object] = []
REQUESTS: list[Request] = []


def through(work: Callable[[Socket], Awaitable[None]], serve: Serve = echo) -> Rig:
    HEARD.clear()
    REQUESTS.clear()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = Socket(reader, writer, client=False)
        try:
            request = await server.hear()
            assert isinstance(request, Request)
            REQUESTS.append(request)
            await serve(server, request)
        except (ConnectionError, RemoteProtocolError, LocalProtocolError):
            pass
        finally:
            writer.close()

    async def scene() -> Rig:
        world = Rig(Policy({"a.test": Tier.INSPECT}))
        world.names = {"a.test": ["127.0.0.1"]}
        world.policy.secrets = ("KEY", "OTHER")
        async with running(world):
            port = await world.server(accept, tls="a.test")
            world.secrets = world.gateway.networks["sb_1"].secrets = book(port)
            world.aim("a.test", port)
            client = Socket(*await world.connect("a.test"), client=True)
            client.say(Request(host=f"a.test:{port}", target="/chat", extensions=[PerMessageDeflate()]))
            await work(client)
            client.writer.close()
        return world

    return asyncio.run(scene())


async def accepted(client: Socket) -> None:
    event = await client.hear()
    assert isinstance(event, AcceptConnection)
    assert event.extensions == []


def test_values_go_out_and_do_not_come_back() -> None:
    async def work(client: Socket) -> None:
        await accepted(client)
        client.say(TextMessage(f'{{"auth": "{PLACEHOLDER}", "x": "ä"}}'))
        assert await client.message() == f'{{"auth": "{PLACEHOLDER}**", "x": "ä"}}'
        client.say(BytesMessage(b"\0" + PLACEHOLDER.encode()))
        assert await client.message() == b"\0" + PLACEHOLDER.encode() + b"**"
        for part in (PLACEHOLDER[:7], PLACEHOLDER[7:], "!"):
            client.say(TextMessage(part, message_finished=part == "!"))
        assert await client.message() == f"{PLACEHOLDER}**!"
        client.say(CloseConnection(3001, "done"))
        end = await client.hear()
        assert isinstance(end, CloseConnection)
        assert (end.code, end.reason) == (3001, "done")

    through(work)
    assert HEARD[0] == f'{{"auth": "{VALUE.decode()}", "x": "ä"}}'
    assert HEARD[1] == b"\0" + VALUE
    assert "".join(part for part in HEARD[2:-1] if isinstance(part, str)) == VALUE.decode() + "!"
    assert HEARD[-1] == (3001, "done")
    assert REQUESTS[0].extensions == []


def test_a_placeholder_that_may_not_go_there_closes_it() -> None:
    async def work(client: Socket) -> None:
        await accepted(client)
        client.say(TextMessage(f"say {OTHER}"))
        end = await client.hear()
        assert isinstance(end, CloseConnection)
        assert (end.code, "placeholder of secret OTHER" in (end.reason or "")) == (1008, True)

    world = through(work)
    assert not [part for part in HEARD if isinstance(part, str)]
    [(_, found)] = world.audit_log.of("secret")
    assert (found.allowed, "placeholder of secret OTHER" in found.reason) == (False, True)
    assert any("placeholder of secret OTHER" in (error or "") for _, _, error in world.audit_log.outcomes.values())


def test_messages_of_any_size_stream() -> None:
    size = 20 * PIECE_BYTES

    async def work(client: Socket) -> None:
        await accepted(client)
        client.say(TextMessage(PLACEHOLDER, message_finished=False))
        client.say(TextMessage("x" * size))
        said = await client.message()
        assert said == f"{PLACEHOLDER}**" + "x" * size

    through(work)


def test_many_frames_at_once_take_turns_with_other_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    frames, rounds, seen, passed = 3000, [0], list[int](), Messages._pass

    def note(self: Messages, frame: Frame) -> bytes:
        seen.append(rounds[0])
        return passed(self, frame)

    async def count() -> None:
        while True:
            rounds[0] += 1
            await asyncio.sleep(0)

    async def pieces(server: Socket, request: Request) -> None:
        server.say(AcceptConnection())
        for n in range(frames):
            server.say(TextMessage(data="x", message_finished=n + 1 == frames))
        await server.hear()

    async def work(client: Socket) -> None:
        counting = asyncio.get_running_loop().create_task(count())
        await accepted(client)
        assert await client.message() == "x" * frames
        counting.cancel()

    monkeypatch.setattr(Messages, "_pass", note)
    through(work, pieces)
    assert len(seen) >= frames
    assert max(Counter(seen).values()) <= 64


def test_pings_pass() -> None:
    async def work(client: Socket) -> None:
        await accepted(client)
        client.say(Ping(b"are you there"))
        event = await client.hear()
        assert isinstance(event, Pong)
        assert event.payload == b"are you there"

    through(work)


@pytest.mark.parametrize("frame", [b"\x81\x02hi", b"\xc1\x82\0\0\0\0hi", b"\x80\x80\0\0\0\0", b"\x83\x80\0\0\0\0"])
def test_what_is_no_frame_closes_it(frame: bytes) -> None:
    """Unmasked; with a bit of an extension; a continuation of nothing; an opcode that is none."""

    async def work(client: Socket) -> None:
        await accepted(client)
        client.writer.write(frame)
        end = await client.hear()
        assert isinstance(end, CloseConnection)
        assert end.code == 1002

    through(work)
    assert not [part for part in HEARD if isinstance(part, str)]


def test_a_server_that_compresses_unasked_is_refused() -> None:
    async def serve(server: Socket, request: Request) -> None:
        accept = AcceptConnection(extra_headers=[(b"Sec-WebSocket-Extensions", b"permessage-deflate")])
        server.say(accept)
        await server.hear()

    async def work(client: Socket) -> None:
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 502")

    through(work, serve)


@given(st.text(max_size=30), st.lists(st.integers(1, 9), max_size=30), st.lists(st.integers(1, 40), max_size=20))
@settings(deadline=None)
def test_whatever_the_frames_the_message_is_one(text: str, frames: list[int], reads: list[int]) -> None:
    whole = f"{text}{PLACEHOLDER}{text}"
    swap = Substitution(book(443), authorized(Target("a.test", 443), "https", "GET", ("KEY",)))
    messages = Messages(outwards=True, filter=swap.message, control=swap.control)
    client, data, at = FrameProtocol(True, []), b"", 0
    for size in frames:
        data += client.send_data(whole[at : at + size], fin=False)
        data += client.ping(b"p")
        at += size
    data += client.send_data(whole[at:], fin=True)
    sent, at = b"", 0
    for size in [*reads, len(data)]:
        sent += messages.feed(data[at : at + size])
        at += size
    server = FrameProtocol(False, [])
    server.receive_bytes(sent)
    said = [frame for frame in server.received_frames() if not frame.opcode.iscontrol()]
    assert "".join(str(frame.payload) for frame in said) == whole.replace(PLACEHOLDER, VALUE.decode())
    assert said[-1].message_finished


@given(st.lists(st.binary(max_size=30), max_size=6))
def test_whatever_comes_is_passed_or_refused(pieces: list[bytes]) -> None:
    messages = Messages(outwards=True, filter=lambda _: book(443).redaction().stream(), control=bytes)
    try:
        for piece in pieces:
            messages.feed(piece)
    except Violation:
        pass
