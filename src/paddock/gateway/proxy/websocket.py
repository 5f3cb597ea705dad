"""WebSocket messages of a sandbox with secrets: it replaces placeholders by values outwards, and values by placeholders
inwards.

Messages stream, in new frames.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Callable
from typing import TYPE_CHECKING

from wsproto.frame_protocol import CloseReason, Frame, FrameProtocol, Opcode, ParseFailed

from paddock.gateway.protocols.http1 import Request, Response, write_response
from paddock.gateway.protocols.refusal import Refused
from paddock.gateway.protocols.replacer import Filter
from paddock.gateway.rules.substitution import Substitution

from .stream import Lost, ProxyStream

if TYPE_CHECKING:
    from .network import SandboxNetwork

PIECE_BYTES = 64 << 10
_MOST_REASON = 120


class Violation(Exception):
    """A message that can't go on. The client gets `code`."""

    def __init__(self, code: CloseReason, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class MisplacedSecret(Lost):
    """A placeholder was on its way to where its secret must not go, or has no value."""


class Messages:
    """The messages of one direction.

    `filter` gives a filter for each message, by its first piece.

    `control` filters the content of pings, pongs and closes.
    """

    def __init__(self, *, outwards: bool, filter: Callable[[bytes], Filter], control: Callable[[bytes], bytes]) -> None:
        self._read, self._write = FrameProtocol(not outwards, []), FrameProtocol(outwards, [])
        self._filter, self._control = filter, control
        self._message: _Message | None = None

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that go on. Nothing goes on after Violation."""
        out = bytearray()
        self._read.receive_bytes(data)
        try:
            for frame in self._read.received_frames():
                out += self._pass(frame)
        except ParseFailed as error:
            raise Violation(error.code, str(error)) from None
        except Refused as error:
            raise Violation(CloseReason.POLICY_VIOLATION, str(error)) from None
        return bytes(out)

    def _pass(self, frame: Frame) -> bytes | bytearray:
        payload = frame.payload
        if frame.opcode is Opcode.CLOSE:
            assert isinstance(payload, tuple)
            code, reason = payload
            return self._write.close(code, _shown(self._control(reason.encode())) or None)
        if frame.opcode in (Opcode.PING, Opcode.PONG):
            carried = self._control(bytes(payload))  # pyright: ignore[reportArgumentType] - bytes, of these two
            return self._write.ping(carried) if frame.opcode is Opcode.PING else self._write.pong(carried)
        text = isinstance(payload, str)
        data = payload.encode() if isinstance(payload, str) else bytes(payload)  # pyright: ignore[reportArgumentType]
        if self._message is None:
            self._message = _Message(self._filter(data), text=text)
        message = self._message
        message.feed(data)
        if frame.message_finished:
            self._message = None
            return self._write.send_data(message.end(), fin=True)
        return self._write.send_data(message.take(), fin=False) if message.large else b""


class _Message:
    """One message under way. It only divides a text between characters."""

    def __init__(self, filter: Filter, *, text: bool) -> None:
        self._filter = filter
        self._decoder = codecs.getincrementaldecoder("utf-8")() if text else None
        self._ready = bytearray()

    @property
    def large(self) -> bool:
        return len(self._ready) >= PIECE_BYTES

    def feed(self, data: bytes) -> None:
        self._ready += self._filter.feed(data)

    def take(self) -> bytes | str:
        return self._given(final=False)

    def end(self) -> bytes | str:
        self._ready += self._filter.end()
        return self._given(final=True)

    def _given(self, *, final: bool) -> bytes | str:
        data = bytes(self._ready)
        self._ready.clear()
        if self._decoder is None:
            return data
        try:
            return self._decoder.decode(data, final)
        except UnicodeDecodeError:
            raise Violation(
                CloseReason.INVALID_FRAME_PAYLOAD_DATA, "a text that is none after a value was put in"
            ) from None


def _shown(reason: bytes) -> str:
    return reason.decode(errors="replace")


async def converse(
    client: ProxyStream, server: ProxyStream, outwards: Messages, inwards: Messages, loop: asyncio.AbstractEventLoop
) -> None:
    """Pass messages until both sides have ended.

    Raise Lost if one broke or sent a refused message, after a close to both.
    """
    ways = {loop.create_task(_pass_on(client, server, outwards)), loop.create_task(_pass_on(server, client, inwards))}
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for way in ways:
            way.cancel()
        results = await asyncio.gather(*ways, return_exceptions=True)
    for result in results:
        if isinstance(result, Violation):
            reason = str(result)[:_MOST_REASON]
            client.write(FrameProtocol(False, []).close(result.code, f"paddock: {reason}"))
            server.write(FrameProtocol(True, []).close(CloseReason.GOING_AWAY))
            raise (MisplacedSecret if result.code is CloseReason.POLICY_VIOLATION else Lost)(str(result))
    for result in results:
        if isinstance(result, Exception):
            raise result


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
    network: SandboxNetwork,
    swap: Substitution | None,
) -> bool:
    """Pass frames on until one side ends. Return False: the connection can't go on. Raise Refused at a 101 that the
    client didn't ask for."""
    if request.upgrade != b"websocket" or response.upgrade != b"websocket":
        server.reset()
        raise Refused("the server switched protocols, unasked", status=502, rule="upstream")
    book = network.secrets
    if book:
        if response.get(EXTENSIONS) is not None:
            server.reset()
            raise Refused("the server extends the WebSocket, unasked", status=502, rule="upstream")
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
        await converse(client, server, outwards, inwards, network.loop)
    else:
        await client.join(server)
    server.guard(None)
    return False
