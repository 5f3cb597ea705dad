"""QEMU's monitor protocol, for a poll loop. Protocol: QEMU, docs/interop/qmp-spec.rst."""

from __future__ import annotations

import json
import socket

from ._loop import IN, Failed, Loop, Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LARGEST_LINE = 1 << 20
_ENDS = ("completed", "failed", "cancelled")
_GONE = "QEMU is gone"


class Monitor:
    def __init__(self, loop: Loop, stream: socket.socket) -> None:
        self._loop, self._stream = loop, stream
        self._received = bytearray()
        self._greeted = Outcome()
        self._answer = Outcome()
        self._gone = False
        self.migrated = Outcome()
        """The last state of its one migration, by the event MIGRATION."""
        stream.setblocking(False)
        loop.watch(stream.fileno(), IN, self._ready)

    async def execute(self, name: str, arguments: dict[str, Any] | None = None, descriptor: int = -1) -> None:
        """Run a command, one at a time. Raises Failed."""
        await self._greeted
        if self._gone:
            raise Failed(_GONE)
        self._answer = Outcome()
        line = json.dumps({"execute": name, "arguments": arguments or {}}).encode() + b"\n"
        try:  # they are short, and one at a time: there is room
            socket.send_fds(self._stream, [line], [] if descriptor < 0 else [descriptor])
        except OSError:
            self.close()
        refusal = await self._answer
        if refusal is not None:
            raise Failed(f"{name}: {refusal.get('desc')}")

    def close(self) -> None:
        if not self._gone:
            self._gone = True
            self._loop.unwatch(self._stream.fileno())
            self._stream.close()
            for outcome in (self._greeted, self._answer, self.migrated):
                outcome.fail(_GONE)

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
            self._greeted.succeed()
        elif "event" not in message:
            self._answer.succeed(message.get("error"))
        elif message["event"] == "MIGRATION" and (state := message.get("data", {}).get("status")) in _ENDS:
            self.migrated.succeed(state)
