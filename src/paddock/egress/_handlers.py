"""The gateway's side of handlers: one process for each sandbox and rule, begun when it is first needed."""

from __future__ import annotations

import asyncio
import socket

import msgspec

from ._handler import LENGTH, Asked, Loading, Said
from ._handler_host import HandlerHost
from ._mock import MockAnswer, checked
from ._refusal import Refused

MOST_TOGETHER = 128
MOST_ANSWER_BYTES = 8 << 20


class Handlers:
    """Of all doors of a gateway. `living` counts them."""

    def __init__(self, host: HandlerHost | None) -> None:
        self.host, self.living = host, 0


class Handler:
    """`ask` one after the other. After a failure of the process, the next request begins a new one."""

    def __init__(self, handlers: Handlers, python: str, rule: str) -> None:
        self._handlers, self._python, self._rule = handlers, python, rule
        self._number: int | None = None
        self._peer: socket.socket | None = None
        self._turn = asyncio.Lock()
        self._ended = False

    async def ask(self, asked: Asked, seconds: float) -> MockAnswer:
        """Refused: 502 what it raised, 503 it cannot be begun, 504 it took longer than that."""
        async with self._turn:
            try:
                async with asyncio.timeout(seconds):
                    said = await self._converse(asked)
            except TimeoutError:
                self._stop()
                raise self._failed(f"took longer than {seconds:g} s", 504) from None
            except (OSError, EOFError, msgspec.DecodeError) as error:
                self._stop()
                raise self._failed(f"died: {error}" if str(error) else "died", 502) from None
            except BaseException:  # the answer to another's question would be the next one's
                self._stop()
                raise
        if said.error is not None:
            raise self._failed(f"failed: {said.error}", 502)
        try:
            return checked(said.status, said.headers, said.body)
        except ValueError as error:
            raise self._failed(f"gave no answer: {error}", 502) from None

    def end(self) -> None:
        """For good. Who waits for its answer is told that it died."""
        self._ended = True
        if not self._turn.locked():
            self._stop()
        elif self._handlers.host is not None and self._number is not None:
            self._handlers.host.end(self._number)

    async def _converse(self, asked: Asked) -> Said:
        if self._peer is None:
            self._begin()
            await self._send(Loading(python=self._python))
        await self._send(asked)
        (size,) = LENGTH.unpack(await self._receive(LENGTH.size))
        if size > MOST_ANSWER_BYTES:
            raise OSError(f"it answers with more than {MOST_ANSWER_BYTES >> 20} MiB")
        return msgspec.msgpack.decode(await self._receive(size), type=Said)

    def _begin(self) -> None:
        handlers = self._handlers
        if self._ended:
            raise Refused("the policy has changed meanwhile", status=503, rule=self._rule, hint="try again")
        if handlers.host is None or not handlers.host.available:
            raise self._failed("cannot be confined on this machine (it has no Landlock), and is not run", 503)
        if handlers.living >= MOST_TOGETHER:
            raise self._failed(f"would be one of more than {MOST_TOGETHER}", 503)
        try:
            self._number, self._peer = handlers.host.start()
        except OSError as error:
            raise self._failed(f"cannot be begun: {error}", 503) from None
        handlers.living += 1

    def _stop(self) -> None:
        if self._peer is None:
            return
        self._peer.close()
        self._peer = None
        self._handlers.living -= 1
        if self._handlers.host is not None and self._number is not None:
            self._handlers.host.end(self._number)

    async def _send(self, message: msgspec.Struct) -> None:
        data = msgspec.msgpack.encode(message)
        await asyncio.get_running_loop().sock_sendall(self._there(), LENGTH.pack(len(data)) + data)

    async def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = await asyncio.get_running_loop().sock_recv(self._there(), min(size - len(data), 1 << 18))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def _there(self) -> socket.socket:
        if self._peer is None:  # ended while it was asked
            raise EOFError
        return self._peer

    def _failed(self, what: str, status: int) -> Refused:
        return Refused(f"the mock's handler {what}", status=status, rule=self._rule)
