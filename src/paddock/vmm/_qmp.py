"""QEMU's monitor protocol, for a poll loop.

A script is a generator. It yields a `Command`, and gets its result, or the exception `Failed`. Or it yields an
`MIGRATION_ENDED`, and gets the data of that event. Protocol: QEMU, docs/interop/qmp-spec.rst.
"""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Callable, Generator

from ._loop import IN, Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LARGEST_LINE = 1 << 20


class Failed(Exception):
    """QEMU refused, or has ended."""


class Command:
    __slots__ = ("arguments", "descriptor", "name")

    def __init__(self, name: str, arguments: dict[str, Any] | None = None, descriptor: int = -1) -> None:
        self.name, self.arguments, self.descriptor = name, arguments, descriptor


MIGRATION_ENDED = ("completed", "failed", "cancelled")
"""The last states of a migration, by the event MIGRATION."""
Script = Generator[Command | tuple[str, ...], "Any", None]


class Monitor:
    def __init__(self, loop: Loop, stream: socket.socket) -> None:
        self._loop, self._stream = loop, stream
        self._received = bytearray()
        self._script: Script | None = None
        self._done: Callable[[str | None], None] = lambda why: None
        self._wanted: Command | tuple[str, ...] | None = None
        self._events: deque[dict[str, Any]] = deque(maxlen=64)
        self._greeted = self._gone = False
        stream.setblocking(False)
        loop.watch(stream.fileno(), IN, self._ready)

    def play(self, script: Script, done: Callable[[str | None], None]) -> None:
        """Run a script. Call `done(None)` at its end, or `done(why)` after a failure. Only one runs at a time."""
        assert self._script is None
        self._script, self._done = script, done
        self._events.clear()
        if self._greeted:
            self._loop.soon(self._advance)

    def close(self) -> None:
        if not self._gone:
            self._gone = True
            self._loop.unwatch(self._stream.fileno())
            self._stream.close()
            self._loop.soon(lambda: self._advance(error="QEMU is gone"))

    def _advance(self, value: Any = None, error: str | None = None) -> None:
        if self._script is None:
            return
        why = None
        try:
            wanted = self._script.throw(Failed(error)) if error is not None else self._script.send(value)
        except StopIteration:
            pass
        except (Failed, OSError, ValueError) as failure:
            why = str(failure)
        else:
            self._want(wanted)
            return
        self._script = self._wanted = None
        self._done(why)

    def _want(self, wanted: Command | tuple[str, ...]) -> None:
        self._wanted = wanted
        if self._gone:
            self._loop.soon(lambda: self._advance(error="QEMU is gone"))
        elif isinstance(wanted, Command):
            line = json.dumps({"execute": wanted.name, "arguments": wanted.arguments or {}}).encode() + b"\n"
            try:  # they are short, and one at a time: there is room
                socket.send_fds(self._stream, [line], [] if wanted.descriptor < 0 else [wanted.descriptor])
            except OSError:
                self.close()
        elif (event := next(filter(self._matches, self._events), None)) is not None:
            self._loop.soon(lambda: self._advance(event.get("data")))

    def _ready(self, events: int) -> None:
        try:
            data = self._stream.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._received += data
        if not data or len(self._received) > _LARGEST_LINE:
            return self.close()
        *lines, self._received = self._received.split(b"\n")
        for line in filter(None, lines):
            self._heard(json.loads(line))

    def _heard(self, message: dict[str, Any]) -> None:
        if "QMP" in message:
            self._greeted = True
            self._advance()
        elif "event" in message:
            self._events.append(message)
            if self._matches(message):
                self._advance(message.get("data"))
        elif isinstance(self._wanted, Command):
            if "error" in message:
                self._advance(error=f"{self._wanted.name}: {message['error'].get('desc')}")
            else:
                self._advance(message.get("return"))

    def _matches(self, event: dict[str, Any]) -> bool:
        if not isinstance(self._wanted, tuple) or event["event"] != "MIGRATION":
            return False
        return event.get("data", {}).get("status") in self._wanted
