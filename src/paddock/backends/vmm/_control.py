"""The daemon's connection with a controller (`vmm/control.py`): requests as lines of JSON, replies in any order."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from paddock.backends.pause_clock import PauseClock, Stopwatch
from paddock.errors import BY_CODE, GuestLostError, GuestProtocolError, PaddockError, SandboxDiedError
from paddock.wire import send_some

# The error codes that a controller may report. It can't report a failure of the machine, policy or supervisor.
_CODES = frozenset({"sandbox", "file", "invalid_argument", "invalid_state", "unsupported"})
_MAX_MESSAGE = 2000
_MOST_BYTES = 4 << 20
_READ = 1 << 16
_SECONDS = 60.0


class Reply(msgspec.Struct, frozen=True):
    """A reply. This class is for replies without fields."""


class Environment(Reply, frozen=True):
    env: dict[str, str]


class _Error(Reply, frozen=True):
    code: str
    message: str
    errno: str | None = None


T = TypeVar("T")


class Control:
    """Belongs to the event loop that makes it, and owns the socket. A message outside the protocol ends it."""

    def __init__(self, stream: socket.socket, pause_clock: PauseClock | None = None) -> None:
        """Start on a stream. While the sandbox of `pause_clock` is paused, the controller can't answer."""
        stream.setblocking(False)
        self._loop, self._stream = asyncio.get_running_loop(), stream
        self.pause_clock = pause_clock or PauseClock()
        self._sending = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._received = bytearray()
        self._failure: PaddockError | None = None
        self._loop.add_reader(stream.fileno(), self._readable)

    @property
    def closed(self) -> bool:
        return self._failure is not None

    async def ask(
        self,
        op: str,
        kind: type[T] = Reply,
        *,
        fds: Sequence[int] = (),
        seconds: float | None = _SECONDS,
        **fields: object,
    ) -> T:
        """Return the reply. Raises the PaddockError of a refusal, SandboxDiedError, or GuestLostError."""
        waited = Stopwatch(self.pause_clock)
        answer = await self._send(op, fds, fields)
        try:
            await asyncio.wait((answer,), timeout=seconds)
            while seconds is not None and not answer.done():
                left = await waited.left(seconds)
                if left <= 0:
                    raise GuestLostError(f"the controller has not answered for {seconds:g} s", hint="try again")
                await asyncio.wait((answer,), timeout=left)
            reply = answer.result()
        finally:
            answer.cancel()
        try:
            return msgspec.convert(reply, kind)
        except msgspec.ValidationError as error:
            raise self._violation(f"an answer with {error}") from None

    async def tell(self, op: str) -> None:
        """Send a request without waiting for its reply."""
        (await self._send(op, (), {})).cancel()

    async def _send(self, op: str, fds: Sequence[int], fields: dict[str, object]) -> asyncio.Future[Any]:
        if self._failure is not None:
            raise self._failure
        id = next(self._numbers)
        answer = self._pending[id] = self._loop.create_future()
        line = json.dumps({"id": id, "op": op, "fds": len(fds), **fields}).encode() + b"\n"
        try:
            async with self._sending:
                if fds:
                    line = line[send_some(self._stream, line, fds) :]
                await self._loop.sock_sendall(self._stream, line)
        except OSError:
            answer.cancel()
            self._fail(_lost())
            raise _lost() from None
        return answer

    def close(self) -> None:
        self._fail(SandboxDiedError("the connection to the sandbox's controller was closed by this side"))

    def _readable(self) -> None:
        try:
            data = self._stream.recv(_READ)  # recv, not recvmsg: the kernel closes descriptors that a guest sends
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._received = (self._received + data).split(b"\n")
        try:
            for line in lines:
                self._handle(json.loads(line))
            if len(self._received) > _MOST_BYTES:
                raise ValueError("a line without an end")
        except (ValueError, KeyError, TypeError, RecursionError, msgspec.ValidationError) as error:
            self._violation(str(error))
        if not data:
            self._fail(_lost())

    def _handle(self, reply: Any) -> None:
        id, error = reply["id"], _refusal(reply["error"]) if "error" in reply else None
        answer = self._pending.pop(id)
        if answer.done():
            return  # the caller has left
        if error is None:
            answer.set_result(reply)
        else:
            answer.set_exception(error)

    def _violation(self, detail: str) -> PaddockError:
        error = GuestProtocolError(f"the controller broke the protocol: {detail[:200]}", hint="kill the sandbox")
        self._fail(error)
        return error

    def _fail(self, error: PaddockError) -> None:
        if self._failure is None:
            self._failure = error
            self._loop.remove_reader(self._stream.fileno())
            self._stream.close()
            for answer in self._pending.values():
                if not answer.done():
                    answer.set_exception(error)
            self._pending.clear()


def _lost() -> PaddockError:
    return SandboxDiedError("the connection to the sandbox's controller was lost", hint="`paddock ls --all` says why")


def _refusal(reported: Any) -> PaddockError:
    """Return the error of a refusal. Raises ValueError for a code outside `_CODES`."""
    reply = msgspec.convert(reported, _Error)
    if reply.code not in _CODES:
        raise ValueError("an error of a kind that no controller may report")
    error = BY_CODE[reply.code](reply.message[:_MAX_MESSAGE])
    if reply.errno is not None:
        error.details["errno"] = reply.errno[:32]
    return error
