"""The daemon's connection with a controller (`vmm/control.py`)."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from paddock.backends.pause_clock import PauseClock, within
from paddock.errors import BY_CODE, GuestLostError, GuestProtocolError, PaddockError, SandboxDiedError
from paddock.vmm.control import MOST_BYTES
from paddock.wire import Frame, Kind, WireError, close_all, copy_all
from paddock.wire.duplex import Duplex

# The error codes that a controller may report. It can't report a failure of the machine, policy or supervisor.
_CODES = frozenset({"sandbox", "file", "invalid_argument", "invalid_state", "unsupported"})
_MAX_MESSAGE = 2000
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


class Control(Duplex):
    """Belongs to the event loop that makes it, and owns the socket. A message outside the protocol ends it."""

    def __init__(self, stream: socket.socket, pause_clock: PauseClock | None = None) -> None:
        """Start on a stream. While the sandbox of `pause_clock` is paused, the controller can't answer."""
        super().__init__(stream, _unexpected, lambda connection: None, MOST_BYTES)
        self.pause_clock = pause_clock or PauseClock()
        self._failure: PaddockError = SandboxDiedError(
            "the connection to the sandbox's controller was lost", hint="`paddock ls --all` says why"
        )

    async def call(
        self,
        op: str,
        kind: type[T] = Reply,
        *,
        fds: Sequence[int] = (),
        seconds: float | None = _SECONDS,
        **fields: object,
    ) -> T:
        """Return the reply. Raises the PaddockError of a refusal, SandboxDiedError, or GuestLostError."""
        body = json.dumps({"op": op, **fields}).encode()
        answer = asyncio.ensure_future(self.ask(body, copy_all(fds)))
        try:
            if seconds is not None and not await within(seconds, self.pause_clock, lambda: asyncio.wait((answer,))):
                raise GuestLostError(
                    f"the controller has not answered for {seconds:g} s",
                    hint="try again; end the sandbox if an earlier version of paddock made it: paddock kill ID",
                )
            frame = await answer
        except OSError:
            raise self._failure from None
        finally:
            answer.cancel()
        close_all(frame.descriptors)
        try:
            if frame.kind is Kind.ERROR:
                raise _refusal(frame.body)
            return msgspec.convert(json.loads(frame.body), kind)
        except (ValueError, RecursionError, msgspec.ValidationError) as error:
            self._fail(WireError(f"an answer with {error}"))
            raise self._failure from None

    def tell(self, op: str) -> None:
        """Send a request whose reply counts for nothing."""
        self.send(Kind.OPEN, 0, json.dumps({"op": op}).encode())

    def _fail(self, error: OSError | WireError) -> None:
        if isinstance(error, WireError):
            words = f"the controller broke the protocol: {str(error)[:200]}"
            self._failure = GuestProtocolError(words, hint="kill the sandbox")
        super()._fail(error)


def _unexpected(connection: Duplex, frame: Frame) -> None:
    close_all(frame.descriptors)
    raise WireError(f"{frame.kind.name} from a controller")


def _refusal(body: bytes) -> PaddockError:
    """Return the error of a refusal. Raises ValueError for a code outside `_CODES`."""
    reply = msgspec.convert(json.loads(body), _Error)
    if reply.code not in _CODES:
        raise ValueError("an error of a kind that no controller may report")
    error = BY_CODE[reply.code](reply.message[:_MAX_MESSAGE])
    if reply.errno is not None:
        error.details["errno"] = reply.errno[:32]
    return error
