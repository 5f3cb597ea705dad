"""One stream of HTTP/2 as a transport of asyncio, whose bytes are one message of HTTP/1.1 in each direction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from ._h2_text import Head, Piece, Pieces, Text
from ._http1 import BadMessage
from ._refusal import refusal_fields
from ._wire import HIGH_WATER, Wire

if TYPE_CHECKING:
    from ._h2_session import Session

_LOW_WATER = HIGH_WATER // 4
_LAST_WORD_SECONDS = 5.0


class StreamFailed(ConnectionResetError):
    """The other side ended it, and not the connection. `untouched`: it had not begun to read it."""

    def __init__(self, reason: str, *, untouched: bool = False) -> None:
        super().__init__(reason)
        self.untouched = untouched


class StreamTransport(asyncio.Transport):
    """`wire` is who is at this end. `pieces` None: that of a server, which is given them with `serve`."""

    def __init__(self, session: Session, *, number: int | None, pieces: Pieces | None) -> None:
        super().__init__()
        self._session, self.number, self._pieces = session, number, pieces
        self._serves = pieces is None
        self._text = Text()
        self.wire: Wire = session.wire.branch(self)
        self._method = "GET"
        self._out = bytearray()
        self._last: Head | None = None
        self._grpc = False
        self._refusal: Head | None = None
        self._deaf = False
        """What comes is not wanted."""
        self._held = self._full = self._closing = self._eof = False
        self._ended = self._sent = self._closed = self._lost = False
        self._owed = 0
        self._timer: asyncio.TimerHandle | None = None

    # -- what comes ----------------------------------------------------------------------------------------------------

    def serve(self, fields: list[tuple[bytes, bytes]], scheme: bytes, *, ended: bool, grpc: bool) -> None:
        """The request. BadMessage; what is answered is sent all the same."""
        method = next((value for name, value in fields if name == b":method"), b"GET")
        self._pieces, self._grpc, self._ended = Pieces(answers=method.decode("latin-1")), grpc, ended
        try:
            text = self._text.request(fields, scheme, ended=ended)
        except BadMessage:
            self._deaf = True
            raise
        self._feed(text)

    def refuse(self, code: ErrorCodes) -> None:
        """Unread."""
        self._reset(code)

    def response(self, fields: list[tuple[bytes, bytes]], *, ended: bool) -> None:
        try:
            text = self._text.response(fields, self._method, ended=ended)
        except BadMessage as error:
            return self._fail(f"the server's answer is malformed: {error}")
        self._feed(text)

    def data(self, data: bytes, size: int) -> None:
        """`size` counts against the windows."""
        if self._deaf:
            return self._session.acknowledge(size, self.number or 0)
        try:
            text = self._text.data(data)
        except BadMessage as error:
            self._owed += size
            return self._fail(str(error))
        self._feed(text)
        if self._held:
            self._owed += size
        else:
            self._session.acknowledge(size, self.number or 0)

    def end(self, trailers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        if self._ended:
            return
        self._ended = True
        if not self._deaf:
            try:
                text = self._text.end(trailers)
            except BadMessage as error:
                return self._fail(str(error))
            self._feed(text)
        self._settle()

    def lost(self, code: int | None) -> None:
        """The other side has reset it."""
        untouched = code == ErrorCodes.REFUSED_STREAM
        try:
            name = ErrorCodes(code or 0).name
        except ValueError:
            name = str(code)
        who = "client" if self._serves else "server"
        self.vanish(StreamFailed(f"the {who} reset the stream ({name})", untouched=untouched))

    def vanish(self, error: Exception) -> None:
        """There is nobody to tell on the other side."""
        if not self._closed:
            self._lost = True
            self._forget()
            self.wire.connection_lost(error)

    def _fail(self, reason: str) -> None:
        self._lost = True
        self._reset(ErrorCodes.PROTOCOL_ERROR)
        self.wire.connection_lost(StreamFailed(reason))

    def _feed(self, text: bytes) -> None:
        while text and not self._closed:
            room = self.wire.get_buffer(-1)
            size = min(len(room), len(text))
            room[:size] = text[:size]
            self.wire.buffer_updated(size)
            text = text[size:]

    def pause_reading(self) -> None:
        self._held = True

    def resume_reading(self) -> None:
        self._held = False
        if self._owed and not self._closed:
            owed, self._owed = self._owed, 0
            self._session.acknowledge(owed, self.number or 0)
            self._session.flush()

    # -- what goes -----------------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> bool:
        return bool(self._out) or self._last is not None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closed or self._session.over or self._pieces is None:
            return
        self._send(self._pieces.feed(data))

    def _send(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if self._refusal is not None:
                self._refuse(piece)
            elif isinstance(piece, bytes):
                self._out += piece
            elif piece.trailers:
                self._last = piece
            elif self._grpc and any(name == b"paddock-refusal" for name, _ in piece.fields) and not piece.ended:
                self._refusal = piece
            else:
                self._begin(piece)
        if self.backlog:
            self._session.wait(self)
        if len(self._out) > _LOW_WATER:
            self._session.flush()
        else:
            self._session.flush_soon()
        if not self._full and len(self._out) > HIGH_WATER:
            self._full = True
            self.wire.pause_writing()

    def _refuse(self, piece: Piece) -> None:
        """In the form of gRPC, which needs all of the text."""
        if isinstance(piece, bytes):
            self._out += piece
        elif self._refusal is not None:
            fields = refusal_fields(self._refusal.fields, bytes(self._out))
            self._out.clear()
            self._refusal = None
            self._begin(Head(fields, ended=True))

    def _begin(self, head: Head) -> None:
        if self.number is None:
            self._method = head.fields[0][1].decode("ascii")
            self.number = self._session.number(self)
        self._session.engine.send_headers(self.number, head.fields, end_stream=head.ended)
        if head.ended:
            self._sent = True
            self._settle()

    def turn(self, budget: int) -> bool:
        """Whether anything could be sent."""
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
            ended = not out and self._last is not None and not self._last.fields
            engine.send_data(number, piece, end_stream=ended)
            went_on, self._sent = True, ended
        if not out and self._last is not None:
            if not self._sent and self._last.fields:
                engine.send_headers(number, self._last.fields, end_stream=True)
            elif not self._sent:
                engine.end_stream(number)
            self._last, self._sent, went_on = None, True, True
        if self._full and len(out) < _LOW_WATER:
            self._full = False
            self.wire.resume_writing()
        self._settle()
        return went_on

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Ends what has ended on this side, or on both."""
        if self._closed or not self._sent:
            return
        if self._ended:
            self._forget()
        elif self._serves and (self._closing or (self._eof and not self.wire.discards)):
            # The answer does not need the rest of the request. Where that is thrown away, for a while, it is not cut:
            # there are clients (curl 7.88) that don't look at an answer when they can't finish their request.
            self._reset(ErrorCodes.NO_ERROR)
        else:
            return
        if self._eof:
            self._session.loop.call_soon(self.wire.eof_received)

    def write_eof(self) -> None:
        self._eof = True
        if self._pieces is None or self._closed:
            self._session.loop.call_soon(self.wire.eof_received)
            return
        if self.wire.discards and self.number is not None:
            self._deaf = True
            self._session.any_length(self.number)
        try:
            self._send(self._pieces.end())
        except BadMessage:
            return self.abort()
        self._settle()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if self._closed or self._closing:
            return
        self._closing = True
        if self._pieces is None or not self._pieces.done:
            self.abort()
        elif not self._serves and not self._ended:  # all that was to come is there, but for its end
            self._timer = self._session.loop.call_later(_LAST_WORD_SECONDS, self.abort)
        else:
            self._settle()

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def abort(self) -> None:
        if not self._closed:
            self._lost = True
            failed = ErrorCodes.NO_ERROR if self._sent else ErrorCodes.INTERNAL_ERROR
            self._reset(failed if self._serves else ErrorCodes.CANCEL)
            self._session.loop.call_soon(self.wire.connection_lost, None)

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
        self._closed = True
        self._out.clear()
        self._last = None
        if self._timer is not None:
            self._timer.cancel()
        self._session.drop(self)
        if self._owed:
            self._session.acknowledge(self._owed, self.number or 0)
            self._owed = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """They are its own."""
