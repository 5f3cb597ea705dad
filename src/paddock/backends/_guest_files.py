"""File actions, put to a guest. One function per action; what they return are values or handles of the model."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from paddock.errors import FileError, Unsupported
from paddock.guest._frames import MAX_LINE, MAX_RESULT_BYTES, STDOUT, ProtocolError
from paddock.guest._frames import parse_json as parse_line
from paddock.model import (
    Action,
    ConnectPort,
    CopyFile,
    DownloadTree,
    FileChange,
    FileInfo,
    FindFiles,
    GrepFiles,
    GrepMatch,
    ListFiles,
    MakeDirectory,
    MoveFile,
    ReadFile,
    RemoveFile,
    SetFileAttributes,
    StatFile,
    UploadTree,
    WatchFiles,
    WriteFile,
)

from ._guest_pipes import PipeReader, PipeWriter
from ._guest_ports import connect
from ._pump import Flow

if TYPE_CHECKING:
    from ._guest_channel import Channel
    from ._guest_connection import GuestConnection

T = TypeVar("T")
_LEAST_OF_A_FILE = 64
"""Bytes: no line about a file is as short."""


class _Nothing(msgspec.Struct, frozen=True):
    pass


class _Truncated(msgspec.Struct, frozen=True):
    truncated: bool


class _Armed(msgspec.Struct, frozen=True):
    armed: bool


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
        stream: int = STDOUT,
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


class FileWriter:
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

    async def _info(self) -> FileInfo:
        return await self._channel.result(FileInfo)

    async def abort(self) -> None:
        self._ended = True
        self._channel.close()
        if self._pipe is not None:
            self._pipe.close()
        with self._channel.attended():
            await self._channel.ended()


class Changes:
    def __init__(self, lines: _Lines, channel: Channel) -> None:
        self._lines = lines
        self._channel = channel

    async def next(self) -> tuple[FileChange, ...]:
        return tuple(await self._lines.some(FileChange))

    async def aclose(self) -> None:
        self._channel.close()


class _Lines:
    """Lines of JSON from a stream of a guest's, one type each. The guest may lie: how long one is, how many there are
    and what they are together is bounded here."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._rest = bytearray()
        self._ready: list[bytes] = []

    async def first(self, type: type[T]) -> T | None:
        """One line, of another type than those that may have come with it; nothing at the end."""
        lines = await self._whole()
        if not lines:
            return None
        self._ready = lines[1:]
        return self._parse(lines[0], type)

    async def some(self, type: type[T]) -> list[T]:
        """What is there, at least one; nothing at the end."""
        return [self._parse(line, type) for line in await self._whole()]

    async def _whole(self) -> list[bytes]:
        if self._ready:
            ready, self._ready = self._ready, []
            return ready
        while True:
            data = await self._channel.read(STDOUT, 65536)
            if not data:
                if self._rest:
                    raise self._channel.breach("a line without an end")
                return []
            # Nothing is searched or copied twice before a line ends: the guest chooses the pieces.
            self._rest += data
            lines = bytes(self._rest).split(b"\n") if b"\n" in data else []
            if lines:
                self._rest = bytearray(lines.pop())
            if len(self._rest) > MAX_LINE:
                raise self._channel.breach("a line without an end")
            if lines:
                return lines

    async def all(self, type: type[T], most: int) -> tuple[T, ...]:
        found: list[T] = []
        left = MAX_RESULT_BYTES
        while lines := await self._whole():
            left -= sum(map(len, lines)) + len(lines)
            if left < 0 or len(found) + len(lines) > most:
                raise self._channel.breach("more results than it may send")
            found += [self._parse(line, type) for line in lines]
        return tuple(found)

    def _parse(self, line: bytes, type: type[T]) -> T:
        try:
            # Not msgspec's own decoder: it refuses the escapes that stand for bytes that are not UTF-8.
            return msgspec.convert(parse_line(line), type)
        except (ProtocolError, msgspec.ValidationError) as error:
            raise self._channel.breach(f"a line with {error}") from None


async def _stat(connection: GuestConnection, action: StatFile) -> FileInfo:
    return await _call(connection, "stat", {"path": action.path, "follow": action.follow}, FileInfo)


async def _mkdir(connection: GuestConnection, action: MakeDirectory) -> FileInfo:
    request = {"path": action.path, "mode": action.mode, "parents": action.parents}
    return await _call(connection, "mkdir", request, FileInfo)


async def _set(connection: GuestConnection, action: SetFileAttributes) -> FileInfo:
    request = {"path": action.path, "mode": action.mode, "uid": action.uid, "gid": action.gid}
    return await _call(connection, "set", request, FileInfo)


async def _move(connection: GuestConnection, action: MoveFile) -> FileInfo:
    request = {"source": action.source, "destination": action.destination}
    try:
        return await _call(connection, "move", request, FileInfo)
    except FileError as error:
        if error.details.get("errno") != "EXDEV":
            raise
    return await _work(connection, "move_tree", request, FileInfo)


async def _copy(connection: GuestConnection, action: CopyFile) -> FileInfo:
    request = {"source": action.source, "destination": action.destination}
    return await _work(connection, "copy", request, FileInfo)


async def _remove(connection: GuestConnection, action: RemoveFile) -> None:
    request = {"path": action.path, "missing_ok": action.missing_ok}
    if action.recursive:
        await _work(connection, "remove_tree", request, _Nothing)
    else:
        await _call(connection, "remove", request, _Nothing)


async def _list(connection: GuestConnection, action: ListFiles) -> tuple[FileInfo, ...]:
    request = {"path": action.path, "depth": action.depth}
    most = MAX_RESULT_BYTES // _LEAST_OF_A_FILE
    found, truncated = await _lines(connection, "list", request, FileInfo, most)
    if truncated:
        raise FileError(f"too much to list below {action.path}", hint="list with a smaller depth", errno="EFBIG")
    return found


async def _find(connection: GuestConnection, action: FindFiles) -> tuple[FileInfo, ...]:
    request = {"path": action.path, "name": action.name, "limit": action.limit}
    return (await _lines(connection, "find", request, FileInfo, action.limit))[0]


async def _grep(connection: GuestConnection, action: GrepFiles) -> tuple[GrepMatch, ...]:
    request = {"path": action.path, "name": action.name, "pattern": action.pattern, "limit": action.limit}
    return (await _lines(connection, "grep", request, GrepMatch, action.limit))[0]


async def _read(connection: GuestConnection, action: ReadFile) -> FileReader:
    request = {"op": "read", "path": action.path, "offset": action.offset, "length": action.length}
    return await open_reader(connection, request, _Nothing, most=action.length)


async def _download(connection: GuestConnection, action: DownloadTree) -> FileReader:
    return await open_reader(connection, {"op": "download", "path": action.path}, _Nothing, works=True)


async def _write(connection: GuestConnection, action: WriteFile) -> FileWriter:
    request = {"op": "write", "path": action.path, "mode": action.mode, "append": action.append}
    return await _writer(connection, request, works=False)


async def _upload(connection: GuestConnection, action: UploadTree) -> FileWriter:
    return await _writer(connection, {"op": "upload", "path": action.path}, works=True)


async def _writer(connection: GuestConnection, request: Mapping[str, object], *, works: bool) -> FileWriter:
    def make(channel: Channel, pipe: PipeWriter | None) -> FileWriter:
        return FileWriter(channel, pipe, works=works)

    return await open_writer(connection, request, _Nothing, make)


async def open_reader(
    connection: GuestConnection, request: object, answer: type[Any], *, most: int | None = None, works: bool = False
) -> FileReader:
    """`answer` is the type of the REPLY."""
    if not connection.descriptors:
        channel = connection.open(request, receives=(STDOUT,))
        await _answered(channel, answer)
        return FileReader(channel, None, most=most, works=works)
    near, far = os.pipe2(os.O_CLOEXEC)
    pipe = PipeReader(near)
    return FileReader(await _over_pipe(connection, request, answer, pipe, far), pipe, most=most, works=works)


async def open_writer(
    connection: GuestConnection,
    request: object,
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
    connection: GuestConnection, request: object, answer: type[Any], pipe: PipeReader | PipeWriter, far: int
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


async def _watch(connection: GuestConnection, action: WatchFiles) -> Changes:
    request = {"op": "watch", "path": action.path, "recursive": action.recursive}
    channel = connection.open(request, receives=(STDOUT,))
    try:
        with channel.attended(works=True):
            await channel.reply(_Nothing)
            lines = _Lines(channel)
            if await lines.first(_Armed) is None:
                await channel.result(_Nothing)  # raises what was refused
        return Changes(lines, channel)
    except BaseException:
        channel.close()
        raise


async def _call(connection: GuestConnection, op: str, request: Mapping[str, object], type: type[T]) -> T:
    return await connection.open({"op": op, **request}).call(type)


async def _work(connection: GuestConnection, op: str, request: Mapping[str, object], type: type[T]) -> T:
    channel = connection.open({"op": op, **request})
    try:
        with channel.attended(works=True):
            await channel.reply(_Nothing)
            return await channel.result(type)
    except BaseException:
        channel.close()
        raise


async def _lines(
    connection: GuestConnection, op: str, request: Mapping[str, object], type: type[T], most: int
) -> tuple[tuple[T, ...], bool]:
    channel = connection.open({"op": op, **request}, receives=(STDOUT,))
    try:
        with channel.attended(works=True):
            await channel.reply(_Nothing)
            found = await _Lines(channel).all(type, most)
            return found, (await channel.result(_Truncated)).truncated
    except BaseException:
        channel.close()
        raise


_SERVED: dict[type[Action[Any]], Callable[[GuestConnection, Any], Awaitable[Any]]] = {
    StatFile: _stat,
    MakeDirectory: _mkdir,
    SetFileAttributes: _set,
    MoveFile: _move,
    CopyFile: _copy,
    RemoveFile: _remove,
    ListFiles: _list,
    FindFiles: _find,
    GrepFiles: _grep,
    ReadFile: _read,
    WriteFile: _write,
    UploadTree: _upload,
    DownloadTree: _download,
    WatchFiles: _watch,
    ConnectPort: connect,
}


async def perform(connection: GuestConnection, action: Action[T]) -> T:
    """By the user whose agent the connection leads to. FileError with the errno's name."""
    serve = _SERVED.get(type(action))
    if serve is None:
        raise Unsupported(f"{type(action).__name__} is no action on files")
    return await serve(connection, action)
