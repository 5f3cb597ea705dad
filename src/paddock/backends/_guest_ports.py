"""Connections with what runs inside: to a port of the sandbox, and from whoever comes to a door."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paddock.errors import FileError
from paddock.model import ConnectPort
from paddock.wire.guest import Stream

if TYPE_CHECKING:
    from ._guest_channel import Channel
    from ._guest_connection import GuestConnection


class PortStream:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def read(self, size: int = 65536) -> bytes:
        try:
            return await self._channel.read(Stream.OUT, size)
        except FileError as error:  # as of a socket of one's own
            raise ConnectionResetError(error.message) from None

    async def write(self, data: bytes) -> None:
        try:
            await self._channel.write(data)
        except FileError as error:
            if error.details.get("errno") in ("ECONNRESET", "EPIPE"):
                raise BrokenPipeError(f"the other side of the port closed: {error.message}") from None
            raise

    async def write_eof(self) -> None:
        self._channel.write_eof()

    async def aclose(self) -> None:
        self._channel.close()

    async def abort(self) -> None:
        self._channel.close()


async def connect(connection: GuestConnection, action: ConnectPort) -> PortStream:
    channel = connection.open(connection.dialect.connect(action.port), receives=(Stream.OUT,), sends=True)
    with channel.attended():
        await channel.reply(connection.dialect.nothing)
    return PortStream(channel)


async def accept(connection: GuestConnection, path: str) -> PortStream:
    """Waits as long as it takes for somebody inside who comes to the door at `path`."""
    channel = connection.open(connection.dialect.accept(path), receives=(Stream.OUT,), sends=True)
    await channel.reply(connection.dialect.nothing)
    return PortStream(channel)
