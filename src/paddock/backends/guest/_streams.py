"""Stream out of and into a guest: files over pipes of the host or frames of a channel, and ports."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from paddock.backends.pump import Flow
from paddock.errors import FileError, InvalidArgumentError
from paddock.model import FileInfo
from paddock.wire.guest import Accept, Connect, File, Op, Stream

from ._frame_streams import FrameReader, FrameWriter
from ._requests import EmptyBody, Request, ask, of_listener, of_port
from .pipes import PipeReader, PipeWriter

if TYPE_CHECKING:
    from .connection import Channel, GuestConnection

Info: TypeAlias = Callable[["Channel", File], FileInfo | None]
"""Convert what the guest says of a file."""


class FileReader:
    """Read a stream out of the sandbox, of `most` bytes if that end was asked for. Closing it early stops its source, a
    worker if it `works`."""

    def __init__(
        self, channel: Channel, source: PipeReader | FrameReader, *, most: int | None = None, works: bool = False
    ) -> None:
        self._channel, self._source = channel, source
        self._left, self._works = most, works
        if isinstance(source, PipeReader):
            # Everything is written when the guest says so: don't wait for others that hold the far end.
            channel.end.then(source.finish)

    async def read(self, size: int = 65536) -> bytes:
        with self._channel.attended(works=self._works):
            data = await self._source.read(size)
            await self._check(len(data), ended=not data)
            return data

    async def pour(self, flow: Flow) -> None:
        if self._left is not None:
            flow.most = self._left + 1
        with self._channel.attended(works=self._works, progress=flow.progress):
            await self._source.pour(flow)
            await self._check(flow.meter.length, ended=True)

    async def _check(self, count: int, *, ended: bool) -> None:
        """Note so many bytes more. At the end, raise what broke the stream, if it wasn't its end."""
        if self._left is not None:
            self._left -= count
            if self._left < 0:
                raise self._channel.breach("more bytes than were asked for")
        if ended:
            await self._channel.finished()
            if isinstance(self._source, FrameReader) and not self._source.is_whole:
                raise self._channel.breach("a stream without an end")

    async def aclose(self) -> None:
        self._source.close()
        self._channel.close()


class FileWriter:
    """A stream into the sandbox, to a worker if it is one that `works`. `abort`, or losing the connection, leaves the
    file as it was. `info` converts what the guest says of the file in the end."""

    def __init__(
        self,
        channel: Channel,
        target: PipeWriter | FrameWriter,
        *,
        works: bool,
        info: Callable[[Channel, File], FileInfo | None],
    ) -> None:
        self._channel, self._target = channel, target
        self._works, self._info = works, info
        self._ended = False
        if isinstance(target, PipeWriter):
            channel.end.then(target.close)

    async def write(self, data: bytes) -> None:
        with self._channel.attended(works=self._works):
            await self._explained(self._target.write(data))

    async def draw(self, flow: Flow) -> None:
        with self._channel.attended(works=self._works, progress=flow.progress):
            await self._explained(self._target.draw(flow))

    async def _explained(self, work: Awaitable[None]) -> None:
        try:
            await work
        except BrokenPipeError:
            await self._channel.finished()  # the reason, if there is one
            raise

    async def aclose(self) -> FileInfo | None:
        if not self._ended:
            self._ended = True
            self._target.close()
            self._channel.write_eof()
        with self._channel.attended(works=self._works):
            return self._info(self._channel, await self._channel.result(File))

    async def abort(self) -> None:
        self._ended = True
        self._channel.close()
        self._target.close()
        with self._channel.attended():
            await self._channel.end.get()


async def open_reader(
    connection: GuestConnection, request: Request, answer: type[Any], *, most: int | None = None, works: bool = False
) -> FileReader:
    """`answer` is the type of the REPLY."""
    pipe, fds = None, ()
    if connection.descriptors:
        near, far = os.pipe2(os.O_CLOEXEC)
        pipe, fds = PipeReader(near), (far,)
    channel = await _asked(connection, request, answer, pipe, fds, receives=pipe is None)
    return FileReader(channel, pipe or channel.outputs[Stream.OUT], most=most, works=works)


async def open_writer(connection: GuestConnection, request: Request, *, works: bool, info: Info) -> FileWriter:
    pipe, fds = None, ()
    if connection.descriptors:
        far, near = os.pipe2(os.O_CLOEXEC)
        pipe, fds = PipeWriter(near), (far,)
    channel = await _asked(connection, request, EmptyBody, pipe, fds, sends=pipe is None)
    target = pipe or channel.input
    assert target is not None
    return FileWriter(channel, target, works=works, info=info)


async def _asked(
    connection: GuestConnection,
    request: Request,
    answer: type[Any],
    pipe: PipeReader | PipeWriter | None = None,
    fds: tuple[int, ...] = (),
    *,
    receives: bool = False,
    sends: bool = False,
) -> Channel:
    """Send the request with the far end of `pipe` in `fds`, if there is one. Close `pipe` if it fails."""
    try:
        channel = connection.open(request, fds=fds, receives=(Stream.OUT,) if receives else (), sends=sends)
        with channel.attended():
            await channel.reply(answer)
    except BaseException:
        if pipe is not None:
            pipe.close()
        raise
    return channel


class PortStream:
    """Hold a connection with a program inside: to its port, or from one that connected to a socket of the sandbox."""

    def __init__(self, channel: Channel) -> None:
        assert channel.input is not None
        self._channel, self._output, self._input = channel, channel.outputs[Stream.OUT], channel.input

    async def read(self, size: int = 65536) -> bytes:
        try:
            return await self._output.read(size)
        except FileError as error:  # as of a socket of one's own
            raise ConnectionResetError(error.message) from None

    async def write(self, data: bytes) -> None:
        try:
            await self._input.write(data)
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


async def connect(connection: GuestConnection, port: int) -> PortStream:
    if not 0 < port < 65536:
        raise InvalidArgumentError("port must be an integer from 1 to 65535")
    request = ask(Op.CONNECT, Connect(port=port), of_port, port)
    return PortStream(await _asked(connection, request, EmptyBody, receives=True, sends=True))


async def accept(connection: GuestConnection, path: str) -> PortStream:
    """Wait without limit for a program inside that connects to the socket at `path`."""
    request = ask(Op.ACCEPT, Accept(path=connection.place.locate(path)), of_listener, path)
    channel = connection.open(request, receives=(Stream.OUT,), sends=True)
    await channel.reply(EmptyBody)
    return PortStream(channel)
