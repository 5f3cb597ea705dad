"""The process that serves a virtual machine its files (`_fuse_server`), paused with the machine."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from ._fuse_nodes import Export
from ._fuse_server import start_file_server
from ._loop import IN, Loop, Outcome

_PAUSE_SECONDS = 10.0
_MOST = 65536


class Shares:
    """The file server of a machine.

    `exports`: `name`, `place` (its path in the jail), `writable`, `shared`, `across`.

    `directory` has the state while the machine is paused. If there is one already, the server restores it.
    """

    def __init__(self, loop: Loop, stream: socket.socket, exports: list[dict[str, Any]], directory: str) -> None:
        self._loop, self._directory = loop, directory
        self._pausing = Outcome()
        shown = tuple(_export(export) for export in exports)
        is_saved = os.path.exists(os.path.join(directory, "files.json"))
        saved = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if is_saved else None
        server = start_file_server(stream.fileno(), shown, saved=saved)
        for fd in (*(export.directory for export in shown), *(() if saved is None else (saved,))):
            os.close(fd)
        stream.close()
        self.pid = server.pid
        self._control = server.control
        self._control.setblocking(False)
        loop.watch(self._control.fileno(), IN, self._answered)

    async def pause(self) -> None:
        """Pause the file server, and wait until it has saved its state. `resume` has to follow in any case."""
        self._pausing = self._loop.outcome(_PAUSE_SECONDS, "the machine did not stop its requests for files")
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        self._send({"op": "pause", "directory": self._directory})
        await self._pausing

    def resume(self) -> None:
        self._send({"op": "resume"})

    def _answered(self, events: int) -> None:
        try:
            data = self._control.recv(_MOST)
        except BlockingIOError:
            return
        if not data:
            self._loop.unwatch(self._control.fileno())
            self._pausing.fail("the machine's file server has ended")
            return
        answer: Any = json.loads(data)
        if "lost" in answer:
            self._pausing.succeed()
        elif "error" in answer:
            self._pausing.fail(answer["error"])

    def _send(self, request: dict[str, Any]) -> None:
        self._control.send(json.dumps(request).encode())


def _export(fields: dict[str, Any]) -> Export:
    directory = os.open(fields["place"], os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    name, across = fields["name"].encode(), fields.get("across") is True
    return Export(name, directory, fields["writable"], fields["shared"], across)
