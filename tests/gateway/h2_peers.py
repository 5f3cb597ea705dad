"""Both ends of HTTP/2 outside the gateway, with hyper-h2: a client that says what it is told, and a server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    InformationalResponseReceived,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)

from tests.gateway.rig import Rig

Fields = list[tuple[bytes, bytes]]


@dataclass
class Message:
    """What came on one stream. `ended` is set when nothing more will."""

    fields: Fields = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    trailers: Fields = field(default_factory=list)
    interim: list[Fields] = field(default_factory=list)
    reset: int | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    began: asyncio.Event = field(default_factory=asyncio.Event)
    more: asyncio.Event = field(default_factory=asyncio.Event)

    def get(self, name: bytes) -> bytes | None:
        return dict(self.fields).get(name)

    @property
    def status(self) -> int:
        return int(self.get(b":status") or 0)


class Peer:
    """`take`: what comes is let go at once, so that the other side may send on."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, client: bool, validate: bool = False
    ) -> None:
        self.reader, self.writer = reader, writer
        self.engine = H2Connection(
            H2Configuration(
                client_side=client,
                validate_outbound_headers=validate,
                normalize_outbound_headers=validate,
            )
        )
        self.streams: dict[int, Message] = {}
        self.gone: ConnectionTerminated | None = None
        self.take = True
        self.sent = 0
        """Bytes of content, with `send`."""
        self.closed = asyncio.Event()
        self.on_request: Callable[[int, Message], None] | None = None
        self.engine.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.writer.write(self.engine.data_to_send())

    async def pump(self) -> None:
        try:
            while data := await self.reader.read(1 << 16):
                for event in self.engine.receive_data(data):
                    self.handle(event)
                self.flush()
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            self.closed.set()
            for message in self.streams.values():
                message.ended.set()
                message.began.set()
            self.writer.close()

    def handle(self, event: object) -> None:
        number = getattr(event, "stream_id", None) or 0
        message = self.streams.setdefault(number, Message()) if number else Message()
        if isinstance(event, RequestReceived | ResponseReceived):
            message.fields = list(event.headers)
            message.began.set()
        elif isinstance(event, InformationalResponseReceived):
            message.interim.append(list(event.headers))
        elif isinstance(event, DataReceived):
            message.body += event.data
            message.more.set()
            if self.take:
                self.engine.acknowledge_received_data(event.flow_controlled_length, number)
        elif isinstance(event, TrailersReceived):
            message.trailers = list(event.headers)
        elif isinstance(event, StreamEnded):
            message.ended.set()
        elif isinstance(event, StreamReset):
            message.reset = event.error_code
            message.ended.set()
            message.began.set()
        elif isinstance(event, ConnectionTerminated):
            self.gone = event
        if isinstance(event, RequestReceived) and self.on_request is not None:
            self.on_request(number, message)

    # -- a client's ----------------------------------------------------------------------------------------------------

    def begin(self, fields: Fields, *, end: bool = True) -> tuple[int, Message]:
        number = self.engine.get_next_available_stream_id()
        message = self.streams[number] = Message()
        self.engine.send_headers(number, fields, end_stream=end)
        self.flush()
        return number, message

    async def ask(self, fields: Fields, body: bytes | None = None) -> Message:
        number, message = self.begin(fields, end=body is None)
        if body is not None:
            self.engine.send_data(number, body, end_stream=True)
            self.flush()
        await message.ended.wait()
        return message

    # -- a server's ----------------------------------------------------------------------------------------------------

    async def send(self, number: int, data: bytes, *, end: bool = False) -> None:
        """As the other side takes it."""
        while data:
            room = min(self.engine.local_flow_control_window(number), self.engine.max_outbound_frame_size, len(data))
            if room <= 0:
                await asyncio.sleep(0.001)
                continue
            self.engine.send_data(number, data[:room])
            self.sent += room
            data = data[room:]
            self.flush()
            await self.writer.drain()
        if end:
            self.engine.end_stream(number)
            self.flush()


def request(host: str, path: str = "/a", method: str = "GET", *more: tuple[bytes, bytes]) -> Fields:
    return [
        (b":method", method.encode()),
        (b":scheme", b"https"),
        (b":authority", host.encode()),
        (b":path", path.encode()),
        *more,
    ]


async def client(rig: Rig, name: str) -> Peer:
    """From inside, with nothing checked. Its reading is a task that ends with the connection."""
    context = rig.client_context()
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port, ssl=context, server_hostname=name)
    peer = Peer(reader, writer, client=True)
    TASKS.append(asyncio.ensure_future(peer.pump()))
    return peer


TASKS: list[asyncio.Future[None]] = []
Answer = Callable[[Peer, int, Message], Awaitable[None]]


async def origin(rig: Rig, name: str, answer: Answer, peers: list[Peer] | None = None) -> int:
    """A server with HTTP/2 and nothing else; `answer` is called with each request's head. Its port."""
    context = rig.public.context(name, h2=True)
    context.set_alpn_protocols(["h2"])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer, client=False, validate=True)

        def begun(number: int, message: Message) -> None:
            TASKS.append(asyncio.ensure_future(answer(peer, number, message)))

        peer.on_request = begun
        if peers is not None:
            peers.append(peer)
        await peer.pump()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    rig.servers.append(server)
    return server.sockets[0].getsockname()[1]


async def echo(peer: Peer, number: int, message: Message) -> None:
    """Answers with what it was sent: the head as text, an empty line, the body."""
    await message.ended.wait()
    head = b"\n".join(b"%b=%b" % one for one in message.fields)
    peer.engine.send_headers(number, [(b":status", b"200"), (b"x-served", b"h2")])
    await peer.send(number, head + b"\n\n" + message.body, end=True)
