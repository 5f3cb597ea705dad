"""HTTP/2 on one wire, with hyper-h2 as its engine: who may send how much, and whose turn it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    InformationalResponseReceived,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from ._h2_frames import MAX_BLOCK_BYTES, PREFACE, Flood, Frames, GoAway
from ._h2_stream import StreamTransport
from ._h2_text import Pieces
from ._wire import Wire

MOST_STREAMS = 100
_DEFAULT_WINDOW = 65_535
_TURN_BYTES = 64 << 10

Opened = Callable[[StreamTransport, list[tuple[bytes, bytes]], bool], None]
"""A stream that the other side has begun, its fields, and whether that was all."""


class Broken(Exception):
    """The other side does not keep to the protocol; it was told."""


class Session:
    """`opened` None: this side begins the streams."""

    def __init__(
        self, wire: Wire, loop: asyncio.AbstractEventLoop, *, opened: Opened | None, window: int, streams_window: int
    ) -> None:
        """`window` bounds what the other side may send unread on one stream, `streams_window` on all."""
        self.wire, self.loop, self._opened = wire, loop, opened
        client = opened is None
        self.engine = H2Connection(
            H2Configuration(
                client_side=client,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
                validate_inbound_headers=False,  # _h2_text does, and refuses one stream instead of all
                normalize_inbound_headers=False,
            )
        )
        self._frames = Frames(loop.time, server=not client)
        self.streams: set[StreamTransport] = set()
        self.refused_above: int | None = None
        """Since the other side's GOAWAY: streams with higher numbers were not begun."""
        self._numbered: dict[int, StreamTransport] = {}
        self._waiting: dict[StreamTransport, None] = {}
        self._soon = False
        self.over = False
        """Nothing is said on it any more."""
        wire.on_room = self.flush
        self._begin(client, window, streams_window)

    def _begin(self, client: bool, window: int, streams_window: int) -> None:
        settings = {SettingCodes.INITIAL_WINDOW_SIZE: window, SettingCodes.MAX_HEADER_LIST_SIZE: MAX_BLOCK_BYTES}
        settings |= {SettingCodes.ENABLE_PUSH: 0} if client else {SettingCodes.MAX_CONCURRENT_STREAMS: MOST_STREAMS}
        self.engine.local_settings = Settings(client=client, initial_values=settings)
        self.engine.initiate_connection()
        self.engine.increment_flow_control_window(streams_window - _DEFAULT_WINDOW)
        if not client:
            self.engine.receive_data(PREFACE)
        self.flush()

    # -- what comes ----------------------------------------------------------------------------------------------------

    def take(self) -> None:
        """What is in the wire's buffer. Broken."""
        data = bytes(self.wire.buffer)
        self.wire.buffer.clear()
        try:
            for piece in self._frames.feed(data):
                if isinstance(piece, GoAway):
                    self._go_away(piece)
                else:
                    for event in self.engine.receive_data(piece):
                        self._handle(event)
        except Flood as flood:
            self.engine.close_connection(error_code=ErrorCodes(flood.code))
            self.over = True
            raise Broken(str(flood)) from None
        except ProtocolError as error:
            self.over = True
            raise Broken(f"not HTTP/2 as it is meant to be: {error}") from None
        finally:
            self.flush()

    def _handle(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            stream = StreamTransport(self, number=event.stream_id, pieces=None)
            self._numbered[event.stream_id] = stream
            self.streams.add(stream)
            assert self._opened is not None
            self._opened(stream, event.headers, event.stream_ended is not None)
            return
        stream = self._numbered.get(getattr(event, "stream_id", None) or 0)
        if isinstance(event, DataReceived):
            if stream is None:
                self.acknowledge(event.flow_controlled_length, event.stream_id)
            else:
                stream.data(event.data, event.flow_controlled_length)
        elif stream is None:
            return
        elif isinstance(event, ResponseReceived | InformationalResponseReceived):
            stream.response(event.headers, ended=isinstance(event, ResponseReceived) and event.stream_ended is not None)
        elif isinstance(event, TrailersReceived):
            stream.end(event.headers)
        elif isinstance(event, StreamEnded):
            stream.end()
        elif isinstance(event, StreamReset):
            stream.lost(event.error_code)

    def _go_away(self, told: GoAway) -> None:
        self.refused_above = told.last
        for number, stream in list(self._numbered.items()):
            if self._opened is None and number > told.last:
                stream.lost(ErrorCodes.REFUSED_STREAM)

    def acknowledge(self, size: int, number: int) -> None:
        """So many bytes of what came on a stream have been passed on."""
        if size and not self.over:
            self.engine.acknowledge_received_data(size, number)

    def any_length(self, number: int) -> None:
        """What still comes on a stream needs not be as long as was said: clients that were refused end it early (curl
        does). The engine would take that for an error of the whole connection, and has no other switch."""
        if (stream := self.engine.streams.get(number)) is not None:
            stream._expected_content_length = None  # pyright: ignore[reportPrivateUsage]

    # -- what goes -----------------------------------------------------------------------------------------------------

    def open(self) -> StreamTransport:
        """A stream of this side, which is begun with its first bytes."""
        stream = StreamTransport(self, number=None, pieces=Pieces(answers=None))
        self.streams.add(stream)
        return stream

    @property
    def full(self) -> bool:
        return len(self.streams) >= min(MOST_STREAMS, self.engine.remote_settings.max_concurrent_streams)

    def number(self, stream: StreamTransport) -> int:
        number = self.engine.get_next_available_stream_id()
        self._numbered[number] = stream
        return number

    def wait(self, stream: StreamTransport) -> None:
        """It has something to send."""
        self._waiting[stream] = None

    def flush_soon(self) -> None:
        """With what others have to send in this turn of the loop."""
        if not self._soon:
            self._soon = True
            self.loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._soon = False
        self.flush()

    def flush(self) -> None:
        """Sends what may be sent, in turns, while the wire takes it."""
        waiting, wire = self._waiting, self.wire
        while waiting and not wire.full and not self.over:
            budget = max(_TURN_BYTES // len(waiting), self.engine.max_outbound_frame_size)
            went_on = False
            for stream in list(waiting):
                went_on = stream.turn(budget) or went_on
                if not stream.backlog:
                    waiting.pop(stream, None)
            wire.write(self.engine.data_to_send())
            if not went_on:
                return
        wire.write(self.engine.data_to_send())

    # -- ends ----------------------------------------------------------------------------------------------------------

    def drop(self, stream: StreamTransport) -> None:
        self.streams.discard(stream)
        self._waiting.pop(stream, None)
        if stream.number is not None:
            self._numbered.pop(stream.number, None)

    def leave(self) -> None:
        """Tells the other side that there will be no more."""
        if not self.over:
            self.engine.close_connection(error_code=ErrorCodes.NO_ERROR)
        self.over = True
        self.wire.write(self.engine.data_to_send())

    def lose(self, error: Exception) -> None:
        """The wire is lost, and all streams with it."""
        self.wire.on_room, self.over = None, True
        for stream in list(self.streams):
            stream.vanish(error)
