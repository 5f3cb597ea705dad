"""QEMU's monitor protocol, for a poll loop: scripts say what they want next and are told what came of it.

A script is a generator: it yields a `Command`, and is sent what that returned, or `Failed` is raised in it; or it
yields an `Awaited` event, and is sent its data. Scripts are played one after the other.
Protocol: QEMU, docs/interop/qmp-spec.rst.
"""

from __future__ import annotations

import array
import json
import socket
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from ._loop import IN, OUT, Loop

_LARGEST_LINE = 1 << 20


class Failed(Exception):
    """QEMU refused, or is gone."""


class Command(NamedTuple):
    name: str
    arguments: dict[str, Any] | None = None
    descriptor: int = -1


class Awaited(NamedTuple):
    """An event of that name whose data has, for `key`, one of `values`."""

    name: str
    key: str = ""
    values: tuple[str, ...] = ()


Script = Generator[Command | Awaited, Any, None]


class Monitor:
    def __init__(self, loop: Loop, stream: socket.socket) -> None:
        self._loop, self._stream = loop, stream
        self._received = bytearray()
        self._unsent: deque[tuple[bytes, int]] = deque()
        self._scripts: deque[tuple[Script, Callable[[str | None], None]]] = deque()
        self._wanted: Command | Awaited | None = None
        self._events: deque[dict[str, Any]] = deque(maxlen=64)
        self._greeted = self._gone = False
        stream.setblocking(False)
        loop.watch(stream.fileno(), IN, self._ready)

    def play(self, script: Script, done: Callable[[str | None], None]) -> None:
        """`done(None)` when it has come to its end, `done(why)` when it failed."""
        self._scripts.append((script, done))
        if len(self._scripts) == 1 and self._greeted:
            self._loop.soon(self._begin)

    def close(self) -> None:
        if not self._gone:
            self._gone = True
            self._loop.unwatch(self._stream.fileno())
            self._stream.close()
            if self._scripts:
                self._loop.soon(lambda: self._advance(error="QEMU is gone"))

    def _begin(self) -> None:
        if self._scripts and self._wanted is None:
            self._events.clear()
            self._advance()

    def _advance(self, value: Any = None, error: str | None = None) -> None:
        script, done = self._scripts[0]
        self._wanted = None
        try:
            self._wanted = script.throw(Failed(error)) if error is not None else script.send(value)
        except StopIteration:
            self._finish(done, None)
        except (Failed, OSError, ValueError) as failure:
            self._finish(done, str(failure))
        else:
            self._want(self._wanted)

    def _want(self, wanted: Command | Awaited) -> None:
        if self._gone:
            self._loop.soon(lambda: self._advance(error="QEMU is gone"))
        elif isinstance(wanted, Command):
            line = json.dumps({"execute": wanted.name, "arguments": wanted.arguments or {}}).encode() + b"\n"
            self._unsent.append((line, wanted.descriptor))
            self._send()
        else:
            for event in list(self._events):
                if self._matches(event):
                    self._loop.soon(lambda event=event: self._advance(event.get("data")))
                    return

    def _finish(self, done: Callable[[str | None], None], why: str | None) -> None:
        self._scripts.popleft()
        done(why)
        if self._scripts:
            self._loop.soon(self._begin)

    def _ready(self, events: int) -> None:
        if events & OUT:
            self._send()
        try:
            data = self._stream.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._received += data
        if not data or len(self._received) > _LARGEST_LINE:
            return self.close()
        *lines, rest = bytes(self._received).split(b"\n")
        self._received = bytearray(rest)
        for line in filter(None, lines):
            self._heard(json.loads(line))

    def _heard(self, message: dict[str, Any]) -> None:
        if "QMP" in message:
            self._greeted = True
            self._begin()
        elif "event" in message:
            self._events.append(message)
            if isinstance(self._wanted, Awaited) and self._matches(message):
                self._advance(message.get("data"))
        elif isinstance(self._wanted, Command):
            if "error" in message:
                self._advance(error=f"{self._wanted.name}: {message['error'].get('desc')}")
            else:
                self._advance(message.get("return"))

    def _matches(self, event: dict[str, Any]) -> bool:
        wanted = self._wanted
        if not isinstance(wanted, Awaited) or event["event"] != wanted.name:
            return False
        return not wanted.key or event.get("data", {}).get(wanted.key) in wanted.values

    def _send(self) -> None:
        while self._unsent and not self._gone:
            line, descriptor = self._unsent[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))] if descriptor >= 0 else []
            try:
                sent = self._stream.sendmsg([line], rights)
            except BlockingIOError:
                self._loop.watch(self._stream.fileno(), IN | OUT, self._ready)
                return
            except OSError:
                return self.close()
            self._unsent.popleft()
            if sent < len(line):
                self._unsent.appendleft((line[sent:], -1))
        if not self._gone:
            self._loop.watch(self._stream.fileno(), IN, self._ready)
