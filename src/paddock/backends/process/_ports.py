"""Ports of a sandbox without walls: they are this machine's own."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os

from paddock.errors import FileError, InvalidArgument
from paddock.model import ConnectPort

_ADDRESSES = ("127.0.0.1", "::1")


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
    for address in _ADDRESSES:
        try:
            return PortStream(*await asyncio.open_connection(address, action.port))
        except OSError as error:
            number = error.errno or number
    name = errno.errorcode.get(number, str(number))
    raise FileError(f"port {action.port}: {os.strerror(number)}", errno=name)
