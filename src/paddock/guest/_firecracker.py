"""Firecracker's API, for a poll loop: HTTP/1.1 over a unix socket, one call after the other.

A script is a generator: it yields a `Call`, and goes on when that was done, or `Refused` is raised in it.
Written against the API document of version 1.17 (firecracker-microvm/firecracker, src/firecracker/swagger).
"""

from __future__ import annotations

import json
import re
import socket
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from ._loop import IN, OUT, Loop, Timer

_PAUSE_SECONDS = 0.005
_DEATH_SECONDS = 1.0
_PATIENCE_SECONDS = 120.0  # memory is written while a call lasts
_LARGEST_HEAD, _LARGEST_BODY = 16 * 1024, 1 << 20
_MOST_WORDS = 500
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})( [^\r\n]*)?\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]{1,10}) *\r\n", re.IGNORECASE)


class Refused(Exception):
    """It says no, says nothing that can be understood, or is gone."""


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    body: dict[str, Any]

    def __bytes__(self) -> bytes:
        body = json.dumps(self.body).encode()
        head = f"{self.method} {self.path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n"
        return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


Script = Generator[Call, None, None]
Done = Callable[[str | None], None]


class Api:
    """`path` is its socket, which may not be there yet. `lost(why)`: it cannot be told anything any more."""

    def __init__(self, loop: Loop, path: str, lost: Callable[[str], None]) -> None:
        self._loop, self._path, self._lost = loop, path, lost
        self._stream: socket.socket | None = None
        self._gone: str | None = None
        self._scripts: deque[tuple[Script, Done]] = deque()
        self._call: Call | None = None
        self._unsent = b""
        self._received = bytearray()
        self._patience: Timer | None = None

    def play(self, script: Script, done: Done) -> None:
        """`done(None)` when it has come to its end, `done(why)` when it failed."""
        self._scripts.append((script, done))
        if len(self._scripts) == 1:
            self._loop.soon(self._advance)

    def close(self, why: str = "Firecracker is gone") -> None:
        """No call is answered any more."""
        if self._gone is None:
            self._gone = why
            self._loop.soon(lambda: self._lost(why))
            if self._stream is not None:
                self._loop.unwatch(self._stream.fileno())
                self._stream.close()
            if self._call is not None:
                self._loop.soon(lambda: self._answered(why))

    # scripts

    def _advance(self, error: str | None = None) -> None:
        if not self._scripts:
            return
        script, done = self._scripts[0]
        try:
            call = next(script) if error is None else script.throw(Refused(error))
        except StopIteration:
            self._finish(done, None)
        except (Refused, OSError) as failure:
            self._finish(done, str(failure))
        else:
            self._begin(call)

    def _finish(self, done: Done, why: str | None) -> None:
        self._scripts.popleft()
        done(why)
        if self._scripts:
            self._loop.soon(self._advance)

    # calls

    def _begin(self, call: Call) -> None:
        self._call = call
        if self._gone is not None:
            why = self._gone
            self._loop.soon(lambda: self._answered(why))
            return
        self._unsent = bytes(call)
        self._patience = self._loop.after(_PATIENCE_SECONDS, lambda: self.close("Firecracker does not answer"))
        self._connect()

    def _connect(self) -> None:
        if self._gone is not None or self._call is None:
            return
        if self._stream is None:
            stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                stream.connect(self._path)
            except OSError:  # it is just starting: whether it ever does is known by its end
                stream.close()
                self._loop.after(_PAUSE_SECONDS, self._connect)
                return
            self._stream = stream
        self._ready(OUT)

    def _answered(self, why: str | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        if self._call is not None:
            call, self._call = self._call, None
            self._advance(None if why is None else f"{call.method} {call.path}: {why}")

    def _ready(self, events: int) -> None:
        assert self._stream is not None
        try:
            if self._unsent:
                self._unsent = self._unsent[self._stream.send(self._unsent) :]
            if events & ~OUT:
                data = self._stream.recv(1 << 16)
                if not data:
                    return self._hung_up()
                self._received += data
        except BlockingIOError:
            pass
        except OSError:
            return self._hung_up()
        try:
            answer = self._answer()
        except ValueError as error:
            return self.close(f"Firecracker {error}")
        self._loop.watch(self._stream.fileno(), IN | (OUT if self._unsent else 0), self._ready)
        if answer is not None:
            self._answered(answer or None)

    def _hung_up(self) -> None:
        """If it has died, its end has more to say: that comes first."""
        assert self._stream is not None
        self._loop.unwatch(self._stream.fileno())
        self._loop.after(_DEATH_SECONDS, self.close)

    def _answer(self) -> str | None:
        """What a whole answer says against the call: nothing, or why. None: it is not whole yet. ValueError."""
        if not self._received:
            return None
        if self._call is None or self._unsent:
            raise ValueError("answers before it is asked")
        end = self._received.find(b"\r\n\r\n") + 4
        if end < 4:
            if len(self._received) > _LARGEST_HEAD:
                raise ValueError("gives an answer without end")
            return None
        head = bytes(self._received[: end - 2])
        status, length = _STATUS.match(head), _LENGTH.search(head)
        size = int(length[1]) if length is not None else 0
        if status is None or b"transfer-encoding" in head.lower():
            raise ValueError("gives an answer that is none")
        if size > _LARGEST_BODY:
            raise ValueError(f"announces an answer of {size} bytes")
        if len(self._received) < end + size:
            return None
        body = bytes(self._received[end : end + size])
        del self._received[: end + size]
        if self._received:
            raise ValueError("gives more than one answer")
        return "" if 200 <= int(status[1]) < 300 else _fault(int(status[1]), body)


def _fault(status: int, body: bytes) -> str:
    try:
        said = json.loads(body)["fault_message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        said = body.decode("utf-8", "replace")
    return f"{said} ({status})"[:_MOST_WORDS] if said else f"status {status}"
