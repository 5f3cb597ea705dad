"""The control socket of gVisor's sentry, for a poll loop.

A script is a generator that yields a `Call`. It gets the result, or the exception `SentryRefused`. One script runs at a
time, on a separate connection. Protocol: gVisor, pkg/urpc.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Generator

from ._loop import IN, Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LARGEST_ANSWER = 1 << 20


class SentryRefused(Exception):
    """The sentry refused, or has ended."""


class Call:
    """A call to the sentry. It passes `files`, and the caller still closes them."""

    __slots__ = ("argument", "files", "method")

    def __init__(self, method: str, argument: Any, files: tuple[int, ...] = ()) -> None:
        self.method, self.argument, self.files = method, argument, files


Script = Generator[Call, "Any", None]


class Sentry:
    def __init__(self, loop: Loop, address: bytes) -> None:
        self._loop, self._address = loop, address

    def play(self, script: Script, done: Callable[[str | None], None]) -> None:
        """`done(None)` when it has come to its end, `done(why)` when it failed."""
        try:
            stream = socket.socket(socket.AF_UNIX)
            stream.connect(self._address)
        except OSError as error:
            script.close()
            why = str(error)
            self._loop.soon(lambda: done(why))
            return
        _ScriptRun(self._loop, stream, script, done).advance()


class _ScriptRun:
    def __init__(self, loop: Loop, stream: socket.socket, script: Script, done: Callable[[str | None], None]) -> None:
        self._loop, self._stream, self._script, self._done = loop, stream, script, done
        self._answer = b""
        loop.watch(stream.fileno(), IN, self._ready)

    def advance(self, value: Any = None, refusal: str | None = None) -> None:
        try:
            call = self._script.throw(SentryRefused(refusal)) if refusal is not None else self._script.send(value)
            text = json.dumps({"method": call.method, "arg": call.argument}).encode()
            socket.send_fds(self._stream, [text], call.files)
        except StopIteration:
            self._finish(None)
        except (SentryRefused, OSError) as error:
            self._script.close()
            self._finish(str(error))

    def _ready(self, events: int) -> None:
        data = self._stream.recv(1 << 16)
        self._answer += data
        try:
            answer: Any = json.loads(self._answer)
        except ValueError:
            if data and len(self._answer) < _LARGEST_ANSWER:
                return
            answer = {"success": False, "err": "the sentry's answer cannot be read"}
        self._answer = b""
        if answer.get("success") is True:
            self.advance(answer.get("result"))
        else:
            self.advance(refusal=str(answer.get("err")))

    def _finish(self, why: str | None) -> None:
        self._loop.unwatch(self._stream.fileno())
        self._stream.close()
        self._done(why)
