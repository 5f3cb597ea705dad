"""WebSocket messages of a sandbox with secrets: it replaces placeholders by values outwards, and values by placeholders
inwards.

Messages stream, in new frames.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Callable

from paddock.gateway.protocols import websocket
from paddock.gateway.protocols.http1 import Request, Response, write_response
from paddock.gateway.protocols.refusal import Refused, UpstreamFailed
from paddock.gateway.protocols.replacer import Filter
from paddock.gateway.protocols.websocket import CloseCode, Frame, FrameReader, Opcode, Violation
from paddock.gateway.rules.secrets import SecretBook
from paddock.gateway.rules.substitution import Substitution

from .stream import ConnectionLost, ProxyStream, together

PIECE_BYTES = 64 << 10


class MisplacedSecret(ConnectionLost):
    """A placeholder was on its way to where its secret must not go, or has no value."""


class Messages:
    """The messages of one direction. A text is cut between letters.

    `filter` gives a filter for each message, by its first piece.

    `control` filters the content of pings, pongs and closes.
    """

    def __init__(self, *, outwards: bool, filter: Callable[[bytes], Filter], control: Callable[[bytes], bytes]) -> None:
        self._reader, self._masked = FrameReader(masked=outwards), outwards
        self._filter, self._control = filter, control
        self._message: Filter | None = None
        self._opcode = Opcode.CONTINUATION
        """The opcode of the message's next frame."""
        self._ready = bytearray()
        self._letters = codecs.getincrementaldecoder("utf-8")()

    def feed(self, data: bytes) -> bytes:
        """Return what goes on. Violation, after which nothing does."""
        try:
            return b"".join([self._pass(frame) for frame in self._reader.feed(data)])
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
        if self._message is None:
            self._message, self._opcode = self._filter(frame.payload), frame.opcode
        self._ready += self._message.feed(frame.payload)
        if frame.last:
            self._ready += self._message.end()
            self._message = None
        elif len(self._ready) < PIECE_BYTES:
            return b""
        data, opcode = bytes(self._ready), self._opcode
        self._ready.clear()
        self._opcode = Opcode.CONTINUATION
        if frame.opcode is Opcode.TEXT:
            try:
                data = self._letters.decode(data, frame.last).encode()
            except UnicodeDecodeError:
                raise Violation(CloseCode.NOT_UTF8, "a text that is none after a value was put in") from None
        return websocket.write_frame(opcode, data, masked=self._masked, last=frame.last)


async def converse(client: ProxyStream, server: ProxyStream, outwards: Messages, inwards: Messages) -> None:
    """Pass messages until both sides have ended.

    Raise Lost if one broke or sent a refused message, after a close to both.
    """
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_pass_on(client, server, outwards))
            group.create_task(_pass_on(server, client, inwards))
    except ExceptionGroup as failed:
        violation = next((exception for exception in failed.exceptions if isinstance(exception, Violation)), None)
        if violation is None:
            raise failed.exceptions[0] from None
        client.write(websocket.write_close(violation.code, f"paddock: {violation}".encode(), masked=False))
        server.write(websocket.write_close(CloseCode.GOING_AWAY, b"", masked=True))
        raise (MisplacedSecret if violation.code is CloseCode.POLICY_VIOLATION else ConnectionLost)(
            str(violation)
        ) from None


async def _pass_on(source: ProxyStream, sink: ProxyStream, messages: Messages) -> None:
    goes_on = True
    while goes_on:
        if source.buffer:
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
        await converse(client, server, outwards, inwards)
    else:
        await together(client.pass_on(server), server.pass_on(client))
    server.guard(None)
    return False
