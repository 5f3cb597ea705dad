"""A plane that lets nothing through: each connection is reset at once."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence

from ._control import Open, Revise, Secret

_AT_ONCE = struct.pack("ii", 1, 0)


class Shut:
    def __init__(self) -> None:
        self._sockets: dict[str, Sequence[socket.socket]] = {}

    async def open(self, order: Open, sockets: Sequence[socket.socket]) -> None:
        self._sockets[order.sandbox] = sockets
        for one in sockets:
            one.setblocking(False)
            if one.type == socket.SOCK_STREAM:
                asyncio.get_running_loop().add_reader(one.fileno(), _reset, one)

    async def revise(self, order: Open | Revise) -> None: ...

    async def secret(self, order: Secret) -> None: ...

    async def close(self, sandbox: str) -> None:
        for one in self._sockets.pop(sandbox):
            asyncio.get_running_loop().remove_reader(one.fileno())
            one.close()


def _reset(listener: socket.socket) -> None:
    try:
        peer, _ = listener.accept()
    except OSError:
        return
    with peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
