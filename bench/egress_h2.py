"""Both ends of HTTP/2 for `bench.egress`: what they cost is not counted, only the gateway between them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from socket import create_connection

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded, WindowUpdated

AT_ONCE = 16
BODY = b"x" * 1024
_WINDOW = 16 << 20
_LITTLE = 1 << 16


def _engine(*, client: bool) -> H2Connection:
    return H2Connection(
        H2Configuration(
            client_side=client,
            validate_inbound_headers=False,
            validate_outbound_headers=False,
            normalize_inbound_headers=False,
            normalize_outbound_headers=False,
        )
    )


class Answers2(asyncio.Protocol):
    """A small answer, or as many bytes as the path says: `/bytes/N`."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._engine, self._left, self._paused = _engine(client=False), dict[int, int](), False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._engine.initiate_connection()
        self.transport.write(self._engine.data_to_send())

    def data_received(self, data: bytes) -> None:
        for event in self._engine.receive_data(data):
            if isinstance(event, RequestReceived):
                path = dict(event.headers)[b":path"]
                size = int(path[7:]) if path.startswith(b"/bytes/") else len(BODY)
                fields = [(b":status", b"200"), (b"content-type", b"text/plain"), (b"content-length", b"%d" % size)]
                self._engine.send_headers(event.stream_id, fields)
                self._left[event.stream_id] = size
        self._more()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._more()

    def _more(self) -> None:
        for number, left in list(self._left.items()):
            while left and not self._paused:
                room = min(self._engine.local_flow_control_window(number), self._engine.max_outbound_frame_size, left)
                if room <= 0:
                    break
                left -= room
                self._engine.send_data(number, bytes(room), end_stream=not left)
                self.transport.write(self._engine.data_to_send())
            self._left[number] = left
            if not left:
                del self._left[number]
        self.transport.write(self._engine.data_to_send())


class Client2:
    """Speaks HTTP/2 to one gateway, on one connection, with `AT_ONCE` streams."""

    def __init__(self, port: int, host: str, name: str, context: ssl.SSLContext) -> None:
        context.set_alpn_protocols(["h2"])
        self._sock = context.wrap_socket(create_connection(("127.0.0.1", port)), server_hostname=name)
        self._host, self._engine = host.encode(), _engine(client=True)
        self._engine.initiate_connection()
        self._engine.increment_flow_control_window(_WINDOW)

    def close(self) -> None:
        self._sock.close()

    def requests(self, count: int) -> None:
        left = count

        def another() -> bool:
            nonlocal left
            left -= 1
            return left >= 0

        self._run("/", another)

    def download(self, size: int) -> None:
        first = [True]
        self._run(f"/bytes/{size}", lambda: bool(first) and first.pop())

    def _run(self, path: str, another: Callable[[], bool]) -> None:
        engine, live, came = self._engine, 0, 0
        while live < AT_ONCE and another():
            live += self._begin(path)
        while live:
            self._sock.sendall(engine.data_to_send())
            data = self._sock.recv(1 << 18)
            assert data, "cut short"
            for event in engine.receive_data(data):
                if isinstance(event, DataReceived):
                    came += event.flow_controlled_length
                    if came > _LITTLE:
                        engine.increment_flow_control_window(came)
                        came = 0
                elif isinstance(event, StreamEnded):
                    live += self._begin(path) - 1 if another() else -1
                elif isinstance(event, WindowUpdated):
                    pass

    def _begin(self, path: str) -> int:
        number = self._engine.get_next_available_stream_id()
        head = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", self._host), (b":path", path.encode())]
        self._engine.send_headers(number, [*head, (b"user-agent", b"bench"), (b"accept", b"*/*")], end_stream=True)
        self._engine.increment_flow_control_window(1 << 30, number)
        return 1
