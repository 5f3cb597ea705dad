"""HTTP/2 on one connection, with hyper-h2 as its engine: flow control and a fair order of the streams."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from paddock.gateway.protocols import http2
from paddock.gateway.protocols.http1 import Body, Ending, Fields, Request, Response
from paddock.gateway.protocols.refusal import BadMessage, Refused, refusal_fields

from .stream import HIGH_WATER, ConnectionLost, Inbound, ProxyStream

_LOW_WATER = HIGH_WATER // 4
_LAST_WORD_SECONDS = 5.0
_MOST_UNREAD = 32
"""Heads of answers that were not read yet."""


class StreamFailed(ConnectionResetError):
    """The other side ended it, and not the connection. `untouched`: it had not begun to read it."""

    def __init__(self, reason: str, *, untouched: bool = False) -> None:
        super().__init__(reason)
        self.untouched = untouched


class Outbound(Enum):
    """How far this side of a stream has come."""

    OPEN = "more may be written"
    FINISHED = "all was written, and some of it waits for its turn"
    SENT = "the end of the stream was sent"
    CLOSED = "the session has forgotten the stream"


class H2Stream(ProxyStream):
    """One stream as a connection."""

    def __init__(self, session: Session, *, number: int | None, address: str = "") -> None:
        """Begin a stream. `number` None: this side begins it."""
        super().__init__(memoryview(b""), address)
        self._session, self.number = session, number
        self._serves = number is not None
        self._method = "GET"
        self._arrived: deque[Request | Response | Refused] = deque()
        self.ending = Ending()
        self._left: int | None = None
        """Remaining bytes of content. None: unknown."""
        self._fields: Fields | None = None
        """Of the message that its first content begins."""
        self._out = bytearray()
        self._last: Fields | None = None
        self._outbound = Outbound.OPEN
        self._is_left = False
        """Nothing is said or read any more."""
        self._owed = 0
        self._timer: asyncio.TimerHandle | None = None

    # -- incoming ------------------------------------------------------------------------------------------------------

    async def request(self, begun: Callable[[], None]) -> Request | None:
        found = self._arrived.popleft() if self._arrived else None
        if isinstance(found, Exception):
            raise found
        return found if isinstance(found, Request) else None

    async def response(self, method: str) -> Response:
        while not self._arrived:
            if not await self.more():
                raise ConnectionLost("it ended before its answer did")
        found = self._arrived.popleft()
        assert isinstance(found, Response)
        return found

    def body(self, head: Request | Response) -> Body:
        return Body(head, self.ending)

    def asked(self, fields: Fields, *, ended: bool) -> None:
        """Take the request that begins the stream. An invalid one gets an answer too."""
        self.is_grpc, self.ending.ended = http2.is_grpc(fields), ended
        self._method = next((value for name, value in fields if name == b":method"), b"GET").decode("latin-1")
        try:
            self._take(http2.read_request(fields, b"https", ended=ended), fields)
        except Refused as error:
            self._inbound = Inbound.DISCARDED
            self._arrived.append(error)

    def answered(self, fields: Fields, *, ended: bool) -> None:
        if len(self._arrived) >= _MOST_UNREAD:
            return self._fail("the server does not come to an answer")
        try:
            self._take(http2.read_response(fields, self._method, ended=ended), fields)
        except BadMessage as error:
            self._fail(f"the server's answer is malformed: {error}")

    def _take(self, message: Request | Response, fields: Fields) -> None:
        bodiless = isinstance(message, Response) and message.bodiless
        self._left = None if message.chunked else 0 if bodiless else message.length or 0
        self._arrived.append(message)
        self.received += _size(fields)
        self.stir()

    def data(self, data: bytes, size: int) -> None:
        """Take data. `size` counts against the windows."""
        if self._inbound is Inbound.DISCARDED:
            return self._session.acknowledge(size, self.number)
        if self._left is not None:
            if len(data) > self._left:
                self._owed += size
                return self._fail("more content than was said")
            self._left -= len(data)
        self._came(data)
        if self._inbound is Inbound.PAUSED:
            self._owed += size
        else:
            self._session.acknowledge(size, self.number)

    def end(self, trailers: Fields | None = None) -> None:
        if self.ending.ended:
            return
        if self._inbound is not Inbound.DISCARDED:
            try:
                self.ending.trailers = http2.read_trailers(trailers or [])
            except BadMessage as error:
                return self._fail(str(error))
            if self._left:
                return self._fail("less content than was said")
        self.ending.ended = True
        self.stir()
        self._proceed()

    def lost(self, code: int | None) -> None:
        """Take a reset by the other side."""
        name = code.name if isinstance(code, ErrorCodes) else str(code)
        who = "client" if self._serves else "server"
        untouched = code == ErrorCodes.REFUSED_STREAM
        self.vanish(StreamFailed(f"the {who} reset the stream ({name})", untouched=untouched))

    def vanish(self, error: Exception) -> None:
        """End the stream without a frame to the other side."""
        if not self._closed:
            self._forget()
            self._lose(error)

    def _fail(self, reason: str) -> None:
        self._reset(ErrorCodes.PROTOCOL_ERROR)
        self._lose(StreamFailed(reason))

    def _hold(self) -> None:
        if self._inbound is Inbound.OPEN and not self.is_closing:
            self._inbound = Inbound.PAUSED

    def _flow_on(self) -> None:
        if self._inbound is Inbound.PAUSED and not self.is_closing:
            self._inbound = Inbound.OPEN
        if self._owed and self._inbound is not Inbound.PAUSED and not self._closed:
            self._pay()
            self._session.flush()

    def _pay(self) -> None:
        owed, self._owed = self._owed, 0
        self._session.acknowledge(owed, self.number)

    # -- outgoing ------------------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> bool:
        return bool(self._out) or self._last is not None

    def ask(self, request: Request, target: str, host: str) -> None:
        self._method, self._fields = request.method, http2.request_fields(request, target, host)

    def respond(self, response: Response, *, keep_alive: bool, minor: int = 1) -> None:
        self._fields = http2.response_fields(response)

    def send(self, data: bytes, last: Fields | None = None) -> None:
        if self._session.over or self._outbound is not Outbound.OPEN:
            return
        fields, self._fields = self._fields, None
        if fields is not None:
            if self.is_grpc and last is not None and any(name == b"paddock-refusal" for name, _ in fields):
                fields, data = refusal_fields(fields, data), b""
            self._begin(fields, ended=last is not None and not (data or last))
        if self._outbound is Outbound.OPEN:
            self._out += data
            self.sent += len(data)
            self._last, self._outbound = last, Outbound.OPEN if last is None else Outbound.FINISHED
        if self.backlog:
            self._session.wait(self)
        if len(self._out) > _LOW_WATER:
            self._session.flush()
        else:
            self._session.flush_soon()
        if not self.full and len(self._out) > HIGH_WATER:
            self.pause_writing()

    def _begin(self, head: Fields, *, ended: bool) -> None:
        if self.number is None:
            self.number = self._session.number(self)
        self._session.engine.send_headers(self.number, head, end_stream=ended)
        self.sent += _size(head)
        if ended:
            self._outbound = Outbound.SENT
            self._proceed()

    def turn(self, budget: int) -> bool:
        """Send as much as possible, and return whether that was any data."""
        engine, number, out = self._session.engine, self.number, self._out
        went_on = False
        assert number is not None
        while out and budget > 0:
            room = min(engine.local_flow_control_window(number), engine.max_outbound_frame_size)
            if room <= 0:
                break
            piece = bytes(memoryview(out)[:room])
            del out[: len(piece)]
            budget -= len(piece)
            engine.send_data(number, piece, end_stream=not out and self._last == [])
            went_on = True
        if not out and self._last is not None:
            if self._last:
                engine.send_headers(number, [(name.lower(), value) for name, value in self._last], end_stream=True)
            elif not went_on:  # or else the last piece has said so
                engine.end_stream(number)
            self._last, self._outbound, went_on = None, Outbound.SENT, True
        if self.full and len(out) < _LOW_WATER:
            self.resume_writing()
        self._proceed()
        return went_on

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _proceed(self) -> None:
        """End the stream once both sides have ended, or this one needs no more."""
        if self._outbound is Outbound.SENT:
            if self.ending.ended:
                self._forget()
            elif self._serves and self._is_left:  # the answer doesn't need the rest of the request
                self._reset(ErrorCodes.NO_ERROR)

    @property
    def _closed(self) -> bool:
        return self._outbound is Outbound.CLOSED

    @property
    def is_closing(self) -> bool:
        return self._is_left or self.error is not None

    async def linger(self) -> None:
        """Discard the rest of a request. Some clients (curl 7.88) don't read an answer if they can't finish it."""
        self._flow_on()
        self._inbound = Inbound.DISCARDED
        self.buffer.clear()
        self._session.any_length(self)
        while not (self.ending.ended or self._session.over or self.error is not None):
            await self._stirred()
        self.close()

    def close(self) -> None:
        if self._closed or self._is_left:
            return
        self._is_left = True
        if self._outbound is Outbound.OPEN:
            self.reset()
        elif not self._serves and not self.ending.ended:  # all that was to come is there, but for its end
            self._timer = self._session.loop.call_later(_LAST_WORD_SECONDS, self.reset)
        else:
            self._proceed()

    def reset(self, why: str = "cut off") -> None:
        failed = ErrorCodes.NO_ERROR if self._outbound is Outbound.SENT else ErrorCodes.INTERNAL_ERROR
        self._reset(failed if self._serves else ErrorCodes.CANCEL)
        self._lose(ConnectionAbortedError(why))

    def refuse(self) -> None:
        """Refuse to begin the stream. The client may try again."""
        self._reset(ErrorCodes.REFUSED_STREAM)

    def _reset(self, code: ErrorCodes) -> None:
        if self._closed:
            return
        self._forget()
        if self.number is not None:
            try:
                self._session.engine.reset_stream(self.number, code)
            except ProtocolError:
                pass  # it has ended on both sides, or everything has
            self._session.flush()

    def _forget(self) -> None:
        self._outbound = Outbound.CLOSED
        self._out.clear()
        self._last = None
        if self._timer is not None:
            self._timer.cancel()
        self._session.drop(self)
        self._pay()


def _size(fields: Fields) -> int:
    return sum(len(name) + len(value) for name, value in fields)


MOST_STREAMS = 100
_READ_BYTES, _READ_EVENTS = 512, 32
_DEFAULT_WINDOW = 65_535
_TURN_BYTES = 64 << 10
_MOST_TABLE_BYTES = 4096
"""Largest table of sent fields, even if the other side offers more: each field costs a search through it."""


class Broken(Exception):
    """The other side breaks the protocol. It has got an error frame."""


class Session:
    """One side of a connection of HTTP/2. `client`: this side begins the streams."""

    def __init__(self, connection: ProxyStream, *, client: bool, window: int, streams_window: int) -> None:
        """Begin a session. `window` bounds the other side's unread data on one stream, `streams_window` on all."""
        self.connection, self.loop, self._client = connection, asyncio.get_running_loop(), client
        self.engine = H2Connection(
            H2Configuration(
                client_side=client,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
                validate_inbound_headers=False,  # protocols.http2 does, and refuses one stream instead of all
                normalize_inbound_headers=False,
            )
        )
        self._frames = http2.Frames(self.loop.time, server=not client)
        self.streams: set[H2Stream] = set()
        self.refused_above: int | None = None
        """Since the other side's GOAWAY: streams with higher numbers were not begun."""
        self._numbered: dict[int, H2Stream] = {}
        self._waiting: dict[H2Stream, None] = {}
        self._soon = False
        self.over = False
        """Neither side sends any more."""
        connection.on_room = self.flush
        settings = {SettingCodes.INITIAL_WINDOW_SIZE: window, SettingCodes.MAX_HEADER_LIST_SIZE: http2.MAX_BLOCK_BYTES}
        settings |= {SettingCodes.ENABLE_PUSH: 0} if client else {SettingCodes.MAX_CONCURRENT_STREAMS: MOST_STREAMS}
        self.engine.local_settings = Settings(client=client, initial_values=settings)
        self.engine.initiate_connection()
        self.engine.increment_flow_control_window(streams_window - _DEFAULT_WINDOW)
        if not client:
            self.engine.receive_data(http2.PREFACE)
        self.flush()

    # -- incoming ------------------------------------------------------------------------------------------------------

    def opened(self, stream: H2Stream, fields: Fields, ended: bool) -> None:
        """Take a stream that the other side has begun with these fields. `ended`: that was all."""

    async def pump(self) -> None:
        """Read until the connection ends or this side leaves. Raises Broken and Lost."""
        most = _READ_BYTES
        while await self.connection.more() and not self.over:
            is_full = len(self.connection.buffer) >= most
            if self._take(most) > _READ_EVENTS:  # many small frames take long, and all other connections wait
                most = _READ_BYTES
            elif is_full:
                most = min(2 * most, HIGH_WATER)
            await self.connection.drain()

    def _take(self, most: int) -> int:
        """Handle at most so many bytes. Return the number of events."""
        buffer, count = self.connection.buffer, 0
        data = bytes(memoryview(buffer)[:most])
        del buffer[:most]
        if buffer:
            self.connection.take_turn()
        try:
            for piece in self._frames.feed(data):
                if isinstance(piece, int):
                    self._peer_leaves(piece)
                else:
                    for event in self.engine.receive_data(piece):
                        self._handle(event)
                        count += 1
        except http2.Flood as flood:
            self.engine.close_connection(error_code=ErrorCodes(flood.code))
            self.over = True
            raise Broken(str(flood)) from None
        except ProtocolError as error:
            self.over = True
            raise Broken(f"not HTTP/2 as it is meant to be: {error}") from None
        finally:
            self.flush()
        return count

    def _handle(self, event: events.Event) -> None:
        stream = self._numbered.get(getattr(event, "stream_id", None) or 0)
        match event:
            case events.RemoteSettingsChanged():
                if self.engine.encoder.header_table_size > _MOST_TABLE_BYTES:
                    self.engine.encoder.header_table_size = _MOST_TABLE_BYTES
            case events.RequestReceived(stream_id=number, headers=fields, stream_ended=ended):
                stream = self._numbered[number] = H2Stream(self, number=number)
                self.streams.add(stream)
                self.opened(stream, fields, ended is not None)
            case events.DataReceived(stream_id=number, flow_controlled_length=size) if stream is None:
                self.acknowledge(size, number)
            case _ if stream is None:
                return
            case events.DataReceived(data=data, flow_controlled_length=size):
                stream.data(data, size)
            case events.ResponseReceived(headers=fields, stream_ended=ended):
                stream.answered(fields, ended=ended is not None)
            case events.InformationalResponseReceived(headers=fields):
                stream.answered(fields, ended=False)
            case events.TrailersReceived(headers=fields):
                stream.end(fields)
            case events.StreamEnded():
                stream.end()
            case events.StreamReset(error_code=code):
                stream.lost(code)
            case _:
                return

    def _peer_leaves(self, last: int) -> None:
        self.refused_above = last
        for number, stream in list(self._numbered.items()):
            if self._client and number > last:
                stream.lost(ErrorCodes.REFUSED_STREAM)

    def acknowledge(self, size: int, number: int | None) -> None:
        """Acknowledge so many processed bytes of a stream."""
        if size and number is not None and not self.over:
            self.engine.acknowledge_received_data(size, number)

    def any_length(self, stream: H2Stream) -> None:
        """Let the rest of a stream be shorter than announced: after a refusal some clients end it early (curl does).

        The engine would take that for an error of the whole connection, and has no other switch.
        """
        if (known := self.engine.streams.get(stream.number or 0)) is not None:
            known._expected_content_length = None  # pyright: ignore[reportPrivateUsage]

    # -- outgoing ------------------------------------------------------------------------------------------------------

    def open(self, address: str) -> H2Stream:
        """Make a stream of this side to the server at `address`. Its first bytes open it."""
        stream = H2Stream(self, number=None, address=address)
        self.streams.add(stream)
        return stream

    @property
    def full(self) -> bool:
        return len(self.streams) >= min(MOST_STREAMS, self.engine.remote_settings.max_concurrent_streams)

    def number(self, stream: H2Stream) -> int:
        number = self.engine.get_next_available_stream_id()
        self._numbered[number] = stream
        return number

    def wait(self, stream: H2Stream) -> None:
        """Queue a stream that has something to send."""
        self._waiting[stream] = None

    def flush_soon(self) -> None:
        """Send together with other streams at the end of this turn of the loop."""
        if not self._soon:
            self._soon = True
            self.loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._soon = False
        self.flush()

    def flush(self) -> None:
        """Send the pending data, in turns, while the connection accepts it."""
        waiting, connection = self._waiting, self.connection
        while waiting and not connection.full and not self.over:
            budget = max(_TURN_BYTES // len(waiting), self.engine.max_outbound_frame_size)
            went_on = False
            for stream in list(waiting):
                went_on = stream.turn(budget) or went_on
                if not stream.backlog:
                    waiting.pop(stream, None)
            connection.write(self.engine.data_to_send())
            if not went_on:
                return
        connection.write(self.engine.data_to_send())

    # -- ends ----------------------------------------------------------------------------------------------------------

    def drop(self, stream: H2Stream) -> None:
        self.streams.discard(stream)
        self._waiting.pop(stream, None)
        if stream.number is not None:
            self._numbered.pop(stream.number, None)

    def go_away(self) -> None:
        """Tell the other side that there will be no more."""
        if not self.over:
            self.engine.close_connection(error_code=ErrorCodes.NO_ERROR)
        self.over = True
        self.connection.write(self.engine.data_to_send())

    def lose(self, error: Exception) -> None:
        """End the session with all its streams, because the connection broke."""
        self.connection.on_room, self.over = None, True
        for stream in list(self.streams):
            stream.vanish(error)
