"""The control socket of gVisor's sentry, for a poll loop. Protocol: gVisor, pkg/urpc."""

from __future__ import annotations

import json
import socket

from ._loop import Failed, Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LARGEST_ANSWER = 1 << 20


class Sentry:
    def __init__(self, loop: Loop, address: bytes) -> None:
        self._loop, self._address = loop, address

    async def call(self, method: str, argument: object, files: tuple[int, ...] = ()) -> None:
        """Make a call to the sentry, on a separate connection. The caller still closes `files`. Raises FAILURES."""
        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect(self._address)
            socket.send_fds(stream, [json.dumps({"method": method, "arg": argument}).encode()], files)
            answer = await self._read(stream)
        if answer.get("success") is not True:
            raise Failed(str(answer.get("err")))

    async def _read(self, stream: socket.socket) -> dict[str, Any]:
        text = b""
        while True:
            await self._loop.readable(stream.fileno())
            data = stream.recv(1 << 16)
            text += data
            try:
                return json.loads(text)
            except ValueError:
                if not data or len(text) >= _LARGEST_ANSWER:
                    raise Failed("the sentry's answer cannot be read") from None
