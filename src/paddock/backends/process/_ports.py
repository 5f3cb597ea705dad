"""Ports of a sandbox without walls: they are this machine's own."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket

from paddock.errors import FileError, InvalidArgument
from paddock.model import ConnectPort

# Numbers, never names: a resolver would read files that are the sandbox's.
_ADDRESSES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class PortStream:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self, size: int = 65536) -> bytes:
        return await self._reader.read(size)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def write_eof(self) -> None:
        with contextlib.suppress(OSError):  # reset already: the reader hears of it
            self._writer.write_eof()

    async def aclose(self) -> None:
        self._writer.close()

    async def abort(self) -> None:
        self._writer.transport.abort()


async def connect(action: ConnectPort) -> PortStream:
    if not 0 < action.port < 65536:
        raise InvalidArgument("port must be an integer from 1 to 65535")
    number = errno.ECONNREFUSED
    for family, address in _ADDRESSES:
        try:
            return PortStream(*await asyncio.open_connection(sock=await _connected(family, (address, action.port))))
        except OSError as error:
            number = error.errno or number
    name = errno.errorcode.get(number, str(number))
    raise FileError(f"port {action.port}: {os.strerror(number)}", errno=name)


async def _connected(family: int, address: tuple[str, int]) -> socket.socket:
    """Raise OSError if no program listens there."""
    peer = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        # A reset is an answer: it was connected, and the other side has hung up since. Reader and writer hear of it.
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            await asyncio.get_running_loop().sock_connect(peer, address)
    except BaseException:
        peer.close()
        raise
    return peer
