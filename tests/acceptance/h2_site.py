"""A site with HTTP/2 and nothing else, for `Internet.site(..., serve=, alpn=("h2",))`: one thread, hyper-h2."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded, StreamReset, TrailersReceived

from .rig import Arrival, Request

_MOST_KEPT = 1 << 16


@dataclass(frozen=True)
class Answer2:
    status: int = 200
    fields: tuple[tuple[str, str], ...] = ()
    body: Iterable[bytes] = (b"hello",)
    trailers: tuple[tuple[str, str], ...] = ()


@dataclass
class _Stream:
    fields: list[tuple[str, str]]
    body: bytes = b""
    trailers: list[tuple[str, str]] = field(default_factory=list)
    rest: Iterator[bytes] | None = None
    piece: bytes = b""
    answer: Answer2 | None = None


def speak_h2(connection: socket.socket, arrival: Arrival, answer: Callable[[Request], Answer2]) -> None:
    """Until the client has enough. `answer` is given a request with its trailers among its fields."""
    engine = H2Connection(H2Configuration(client_side=False, header_encoding="latin-1"))
    engine.initiate_connection()
    streams: dict[int, _Stream] = {}
    while True:
        connection.sendall(engine.data_to_send())
        data = connection.recv(_MOST_KEPT)
        if not data:
            return
        for event in engine.receive_data(data):
            if isinstance(event, RequestReceived):
                streams[event.stream_id] = _Stream([(str(name), str(value)) for name, value in event.headers])
            elif isinstance(event, DataReceived):
                stream = streams[event.stream_id]
                stream.body = (stream.body + event.data)[:_MOST_KEPT]
                engine.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, TrailersReceived):
                streams[event.stream_id].trailers = [(str(name), str(value)) for name, value in event.headers]
            elif isinstance(event, StreamEnded):
                _begin(engine, event.stream_id, streams[event.stream_id], arrival, answer)
            elif isinstance(event, StreamReset):
                streams.pop(event.stream_id, None)
        for number, stream in list(streams.items()):
            if stream.rest is not None and _go_on(connection, engine, number, stream):
                del streams[number]


def _begin(
    engine: H2Connection, number: int, stream: _Stream, arrival: Arrival, answer: Callable[[Request], Answer2]
) -> None:
    known = dict(stream.fields)
    request = Request(known[":method"], known[":path"], [*stream.fields, *stream.trailers], stream.body)
    arrival.requests.append(request)
    stream.answer = answer(request)
    stream.rest = iter(stream.answer.body)
    engine.send_headers(number, [(":status", str(stream.answer.status)), *stream.answer.fields])


def _go_on(connection: socket.socket, engine: H2Connection, number: int, stream: _Stream) -> bool:
    """Sends what the client takes; whether that was all."""
    assert stream.rest is not None
    assert stream.answer is not None
    while True:
        stream.piece = stream.piece or next(stream.rest, b"")
        if not stream.piece:
            break
        room = min(engine.local_flow_control_window(number), engine.max_outbound_frame_size)
        if room <= 0:
            return False
        engine.send_data(number, stream.piece[:room])
        stream.piece = stream.piece[room:]
        connection.sendall(engine.data_to_send())
    if stream.answer.trailers:
        engine.send_headers(number, list(stream.answer.trailers), end_stream=True)
    else:
        engine.end_stream(number)
    return True
