"""WebSocket messages of a sandbox with secrets: it replaces placeholders by values outwards, and values by placeholders
inwards.

Messages stream, in new frames.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Awaitable, Callable
from itertools import islice

from paddock.gateway.protocols import websocket
from paddock.gateway.protocols.http1 import Request, Response, write_response
from paddock.gateway.protocols.refusal import Refused, UpstreamFailed
from paddock.gateway.protocols.replacer import Filter
from paddock.gateway.protocols.websocket import CloseCode, Frame, FrameReader, Opcode, Violation
from paddock.gateway.rules.secrets import SecretBook
from paddock.gateway.rules.substitution import Substitution

from .stream import ConnectionLost, ProxyStream, together

PIECE_BYTES = 64 << 10
_TURN_FRAMES = 64


class MisplacedSecret(ConnectionLost):
    """A placeholder was on its way to where its secret must not go, or has no value."""


class Messages:
    """The messages of one direction. A text is cut between letters.

    `filter` gives a filter for each message, by its first piece.

    `control` filters the content of pings, pongs and closes. `lags`: there are frames for the next turn.
    """

    def __init__(self, *, outwards: bool, filter: Callable[[bytes], Filter], control: Callable[[bytes], bytes]) -> None:
        self._reader, self._masked = FrameReader(masked=outwards), outwards
        self._filter, self._control = filter, control
        self._message: Filter | None = None
        self._held = bytearray()
        """The frames of a piece: a filter for each would take long."""
        self._has_begun = self.lags = False
        self._letters = codecs.getincrementaldecoder("utf-8")()

    def feed(self, data: bytes) -> bytes:
        """Return the part that goes on in this turn. Violation, after which nothing does."""
        try:
            passed = [self._pass(frame) for frame in islice(self._reader.feed(data), _TURN_FRAMES)]
            self.lags = len(passed) == _TURN_FRAMES
            return b"".join(passed)
        except Refused as error:
            raise Violation(CloseCode.POLICY_VIOLATION, str(error)) from None

    def _pass(self, frame: Frame) -> bytes:
        if frame.opcode is Opcode.CLOSE and frame.payload:
            code, reason = int.from_bytes(frame.payload[:2], "big"), self._control(frame.payload[2:])
            return websocket.write_close(code, reason, masked=self._masked)
        if frame.opcode >= Opcode.CLOSE:
            carried = self._control(frame.payload)
            if len(carried) > websocket.MAX_CONTROL:
                raise Violation(CloseCode.PROTOCOL_ERROR, "a control frame is too long once its secret is hidden")
            return websocket.write_frame(frame.opcode, carried, masked=self._masked)
        self._held += frame.payload
        if not frame.last and len(self._held) < PIECE_BYTES:
            return b""
        piece, opcode = bytes(self._held), Opcode.CONTINUATION if self._has_begun else frame.opcode
        self._held.clear()
        self._has_begun = not frame.last
        if self._message is None:
            self._message = self._filter(piece)
        data = self._message.feed(piece)
        if frame.last:
            data += self._message.end()
            self._message = None
        if frame.opcode is Opcode.TEXT:
            try:
                data = self._letters.decode(data, frame.last).encode()
            except UnicodeDecodeError:
                raise Violation(CloseCode.NOT_UTF8, "a text that is none after a value was put in") from None
        return websocket.write_frame(opcode, data, masked=self._masked, last=frame.last)


Turn = Callable[[], Awaitable[None]]


async def converse(client: ProxyStream, server: ProxyStream, outwards: Messages, inwards: Messages, turn: Turn) -> None:
    """Pass messages until both sides have ended. `turn` waits for other sandboxes.

    Raise Lost if one broke or sent a refused message, after a close to both.
    """
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_pass_on(client, server, outwards, turn))
            group.create_task(_pass_on(server, client, inwards, turn))
    except ExceptionGroup as failed:
        violation = next((exception for exception in failed.exceptions if isinstance(exception, Violation)), None)
        if violation is None:
            raise failed.exceptions[0] from None
        client.write(websocket.write_close(violation.code, f"paddock: {violation}".encode(), masked=False))
        server.write(websocket.write_close(CloseCode.GOING_AWAY, b"", masked=True))
        raise (MisplacedSecret if violation.code is CloseCode.POLICY_VIOLATION else ConnectionLost)(
            str(violation)
        ) from None


async def _pass_on(source: ProxyStream, sink: ProxyStream, messages: Messages, turn: Turn) -> None:
    goes_on = True
    while goes_on:
        while source.buffer or messages.lags:
            await turn()
            data = b""
            if not messages.lags:  # or else the frames for later would pile up
                data = bytes(source.buffer)
                source.buffer.clear()
            sink.write(messages.feed(data))
            await sink.drain()
        goes_on = await source.more()
    sink.write_eof()


EXTENSIONS = b"sec-websocket-extensions"


async def switch(
    request: Request,
    response: Response,
    client: ProxyStream,
    server: ProxyStream,
    book: SecretBook,
    swap: Substitution | None,
    turn: Turn,
) -> bool:
    """Pass frames on until one side ends. Return False: the connection can't go on. Raise Refused at a 101 that the
    client didn't ask for."""
    if request.upgrade != b"websocket" or response.upgrade != b"websocket":
        raise UpstreamFailed("the server switched protocols, unasked")
    if book:
        if response.get(EXTENSIONS) is not None:
            raise UpstreamFailed("the server extends the WebSocket, unasked")
        redaction = book.redaction()
        response.fields = redaction.fields(response.fields)
    client.write(write_response(response, keep_alive=True))
    client.watch(False)
    server.guard(client)
    if book and swap is not None:
        outwards = Messages(outwards=True, filter=swap.message, control=swap.control)
        inwards = Messages(
            outwards=False,
            filter=lambda _: book.redaction().stream(),
            control=lambda data: book.redaction().whole(data),
        )
        await converse(client, server, outwards, inwards, turn)
    else:
        await together(client.pass_on(server), server.pass_on(client))
    server.guard(None)
    return False
