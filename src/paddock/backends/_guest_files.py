"""Streams out of and into files of a guest, over pipes that the host made or over the frames of a channel."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paddock.model import FileInfo
from paddock.wire.guest import Stream

from ._guest_pipes import PipeReader, PipeWriter
from ._pump import Flow

if TYPE_CHECKING:
    from ._guest_channel import Channel
    from ._guest_connection import GuestConnection
    from .guest import Request


class FileReader:
    """A stream out of the sandbox, of `most` bytes if it has an end that was asked for. Closing it early stops what
    makes it: a worker, if it is one that `works`."""

    def __init__(
        self,
        channel: Channel,
        pipe: PipeReader | None,
        *,
        most: int | None = None,
        works: bool = False,
        stream: int = Stream.OUT,
    ) -> None:
        self._channel = channel
        self._pipe = pipe
        self._stream = stream
        self._works = works
        self._left = most
        if pipe is not None:
            # Everything has been written when the guest says so; who else holds the other side is not waited for.
            channel.when_ended(pipe.finish)

    async def read(self, size: int = 65536) -> bytes:
        with self._channel.attended(works=self._works):
            data = await (self._channel.read(self._stream, size) if self._pipe is None else self._pipe.read(size))
            if self._left is not None:
                self._left -= len(data)
                if self._left < 0:
                    raise self._channel.breach("more bytes than were asked for")
            if not data:
                await self._channel.finished()  # was that the end, or did something break?
                if self._pipe is None and not self._channel.is_whole(self._stream):
                    raise self._channel.breach("a stream without an end")
            return data

    async def pour(self, flow: Flow) -> None:
        if self._pipe is None:
            await flow.pour(self.read)
            return
        if self._left is not None:
            flow.most = self._left + 1
        with self._channel.attended(works=self._works, progress=flow.progress):
            await self._pipe.pour(flow)
            if self._left is not None and flow.meter.length > self._left:
                raise self._channel.breach("more bytes than were asked for")
            await self._channel.finished()  # was that the end, or did something break?

    async def aclose(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        self._channel.close()


class FileWriter(ABC):
    """A stream into the sandbox, to a worker if it is one that `works`. `abort`, or losing the connection, leaves the
    file as it was."""

    def __init__(self, channel: Channel, pipe: PipeWriter | None, *, works: bool) -> None:
        self._channel = channel
        self._pipe = pipe
        self._works = works
        self._ended = False
        if pipe is not None:
            channel.when_ended(pipe.close)

    async def write(self, data: bytes) -> None:
        with self._channel.attended(works=self._works):
            try:
                await (self._channel if self._pipe is None else self._pipe).write(data)
            except BrokenPipeError:
                await self._channel.finished()  # the reason, if there is one
                raise

    async def draw(self, flow: Flow) -> None:
        if self._pipe is None:
            await flow.draw(self.write)
            return
        with self._channel.attended(works=self._works, progress=flow.progress):
            try:
                await self._pipe.draw(flow)
            except BrokenPipeError:
                await self._channel.finished()  # the reason, if there is one
                raise

    async def aclose(self) -> FileInfo | None:
        if not self._ended:
            self._ended = True
            if self._pipe is not None:
                self._pipe.close()
            self._channel.write_eof()
        with self._channel.attended(works=self._works):
            return await self._info()

    @abstractmethod
    async def _info(self) -> FileInfo | None: ...

    async def abort(self) -> None:
        self._ended = True
        self._channel.close()
        if self._pipe is not None:
            self._pipe.close()
        with self._channel.attended():
            await self._channel.ended()


async def open_reader(
    connection: GuestConnection, request: Request, answer: type[Any], *, most: int | None = None, works: bool = False
) -> FileReader:
    """`answer` is the type of the REPLY."""
    if not connection.descriptors:
        channel = connection.open(request, receives=(Stream.OUT,))
        await _answered(channel, answer)
        return FileReader(channel, None, most=most, works=works)
    near, far = os.pipe2(os.O_CLOEXEC)
    pipe = PipeReader(near)
    return FileReader(await _over_pipe(connection, request, answer, pipe, far), pipe, most=most, works=works)


async def open_writer(
    connection: GuestConnection,
    request: Request,
    answer: type[Any],
    make: Callable[[Channel, PipeWriter | None], FileWriter],
) -> FileWriter:
    if not connection.descriptors:
        channel = connection.open(request, sends=True)
        await _answered(channel, answer)
        return make(channel, None)
    far, near = os.pipe2(os.O_CLOEXEC)
    pipe = PipeWriter(near)
    return make(await _over_pipe(connection, request, answer, pipe, far), pipe)


async def _over_pipe(
    connection: GuestConnection, request: Request, answer: type[Any], pipe: PipeReader | PipeWriter, far: int
) -> Channel:
    """Hands the far end in; `pipe` is closed if nothing comes of it."""
    try:
        try:
            channel = connection.open(request, fds=(far,))
        finally:
            os.close(far)
        await _answered(channel, answer)
    except BaseException:
        pipe.close()
        raise
    return channel


async def _answered(channel: Channel, answer: type[Any]) -> None:
    with channel.attended():
        await channel.reply(answer)
