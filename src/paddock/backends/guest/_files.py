"""File actions, put to a native guest. One method per action."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeVar

from paddock import model
from paddock.errors import FileError, UnsupportedError
from paddock.model import Action, FileChange, FileInfo, FileKind, GrepMatch
from paddock.wire import WireError
from paddock.wire import guest as wire
from paddock.wire.guest import MkdirFlags, Op, RemoveFlags, SetFlags, Stream, WriteFlags
from paddock.wire.message import Message

from ._place import encode, show
from ._regex import compile_pattern
from ._requests import TEXT, EmptyBody, Request, ask, flags, of_copy, of_file
from ._streams import FileReader, FileWriter, PortStream, connect, open_reader, open_writer

if TYPE_CHECKING:
    from .connection import Channel, GuestConnection

M = TypeVar("M", bound=Message)
T = TypeVar("T")
_ALL = (1 << 64) - 1
MAX_RESULT_BYTES = 32 << 20
"""Of the rows that answer one request."""
_LENGTH = Struct("<I")
_MOST_OF_A_ROW = 16 << 10
_LINE_CHARACTERS = 2000
_ARCHIVE = "a tar archive that can be unpacked"
_KINDS = {1: FileKind.FILE, 2: FileKind.DIRECTORY, 3: FileKind.SYMLINK, 4: FileKind.OTHER}
_CHANGES = {1: "created", 2: "modified", 3: "removed", 4: "moved_from", 5: "moved_to", 6: "overflow"}


class _Files:
    """Serve each action by the method that has the name of its tag."""

    def __init__(self, connection: GuestConnection) -> None:
        self._connection, self._place = connection, connection.place

    async def stat(self, action: model.StatFile) -> FileInfo:
        wanted = flags({wire.StatFlags.FOLLOW: action.follow})
        return await self._call(self._about(Op.STAT, wire.Stat, action.path, flags=wanted))

    async def mkdir(self, action: model.MakeDirectory) -> FileInfo:
        wanted = flags({MkdirFlags.PARENTS: action.parents, MkdirFlags.MODE: action.mode is not None})
        return await self._call(self._about(Op.MKDIR, wire.Mkdir, action.path, flags=wanted, mode=action.mode or 0))

    async def set(self, action: model.SetFileAttributes) -> FileInfo:
        changes = {SetFlags.MODE: action.mode, SetFlags.UID: action.uid, SetFlags.GID: action.gid}
        wanted = flags({flag: value is not None for flag, value in changes.items()})
        mode, uid, gid = (value or 0 for value in changes.values())
        return await self._call(self._about(Op.SET, wire.Set, action.path, flags=wanted, mode=mode, uid=uid, gid=gid))

    async def move(self, action: model.MoveFile) -> FileInfo:
        return await self._work(ask(Op.MOVE, wire.Move(**self._both(action)), of_file, action.source))

    async def copy(self, action: model.CopyFile) -> FileInfo:
        return await self._work(ask(Op.COPY, wire.Copy(**self._both(action)), of_copy, action.source))

    def _both(self, action: model.MoveFile | model.CopyFile) -> dict[str, bytes]:
        return {
            "source": self._place.locate(action.source, "source"),
            "destination": self._place.locate(action.destination, "destination"),
        }

    async def remove(self, action: model.RemoveFile) -> None:
        wanted = flags({RemoveFlags.RECURSIVE: action.recursive, RemoveFlags.MISSING_OK: action.missing_ok})
        async with self._begun(self._about(Op.REMOVE, wire.Remove, action.path, flags=wanted)) as channel:
            await channel.finished()

    async def list(self, action: model.ListFiles) -> tuple[FileInfo, ...]:
        request = self._about(Op.LIST, wire.List, action.path, depth=action.depth)
        found, whole = await self._rows(request, wire.File, None)
        if not whole:
            raise FileError(f"too much to list below {action.path}", hint="list with a smaller depth", errno="EFBIG")
        return tuple(found)

    async def find(self, action: model.FindFiles) -> tuple[FileInfo, ...]:
        request = self._about(Op.FIND, wire.Find, action.path, limit=action.limit, name=encode(action.name))
        found, _ = await self._rows(request, wire.File, action.limit)
        return tuple(found)

    async def grep(self, action: model.GrepFiles) -> tuple[GrepMatch, ...]:
        pattern = compile_pattern(action.pattern)._asdict()
        request = self._about(Op.GREP, wire.Grep, action.path, limit=action.limit, name=encode(action.name), **pattern)
        found, _ = await self._rows(request, wire.Match, action.limit)
        return tuple(found)

    async def read(self, action: model.ReadFile) -> FileReader:
        length = _ALL if action.length is None else action.length
        request = self._about(Op.READ, wire.Read, action.path, offset=action.offset, length=length)
        return await open_reader(self._connection, request, wire.ReadReply, most=action.length)

    async def download(self, action: model.DownloadTree) -> FileReader:
        request = self._about(Op.DOWNLOAD, wire.Download, action.path)
        return await open_reader(self._connection, request, EmptyBody, works=True)

    async def write(self, action: model.WriteFile) -> FileWriter:
        wanted = flags({WriteFlags.APPEND: action.append, WriteFlags.MODE: action.mode is not None})
        request = self._about(Op.WRITE, wire.Write, action.path, flags=wanted, mode=action.mode or 0)
        return await open_writer(self._connection, request, works=False, info=self._told_info)

    async def upload(self, action: model.UploadTree) -> FileWriter:
        request = self._about(Op.UPLOAD, wire.Upload, action.path, _ARCHIVE)
        return await open_writer(self._connection, request, works=True, info=self._told_info)

    async def watch(self, action: model.WatchFiles) -> Changes:
        wanted = flags({wire.WatchFlags.RECURSIVE: action.recursive})
        request = self._about(Op.WATCH, wire.Watch, action.path, flags=wanted)
        async with self._begun(request, (Stream.OUT,)) as channel:
            pass
        return Changes(channel, lambda row: self._told(channel, self._change, row))

    def _about(self, op: Op, kind: Callable[..., Message], path: str, wanted: str = TEXT, **fields: object) -> Request:
        """Ask about the file at `path`. `wanted` is what a part of the request has to be."""
        return ask(op, kind(path=self._place.locate(path), **fields), of_file, path, wanted)

    async def connect(self, action: model.ConnectPort) -> PortStream:
        return await connect(self._connection, action.port)

    async def _call(self, request: Request) -> FileInfo:
        channel = self._connection.open(request)
        return self._told_info(channel, await channel.call(wire.File))

    async def _work(self, request: Request) -> FileInfo:
        async with self._begun(request) as channel:
            return self._told_info(channel, await channel.result(wire.File))

    @asynccontextmanager
    async def _begun(self, request: Request, receives: Sequence[int] = ()) -> AsyncGenerator[Channel]:
        """Yield what a worker has begun; if the block fails, it stops."""
        channel = self._connection.open(request, receives=receives)
        try:
            with channel.attended(works=True):
                await channel.reply(EmptyBody)
                yield channel
        except BaseException:
            channel.close()
            raise

    async def _rows(self, request: Request, type: type[Message], most: int | None) -> tuple[list[Any], bool]:
        """Return rows and whether they are complete. The guest is trusted neither with their number nor with their
        size."""
        convert: Callable[[Any], Any] = self._info if type is wire.File else self._match
        found: list[Any] = []
        async with self._begun(request, (Stream.OUT,)) as channel:
            rows = _Rows(channel)
            while some := await rows.some(type):
                found += [self._told(channel, convert, row) for row in some]
                if most is not None and len(found) > most:
                    raise channel.breach("more results than it may send")
                if rows.total > MAX_RESULT_BYTES:
                    channel.close()
                    return found, False
            ended = await channel.result(wire.Walked)
            return found, not ended.flags & wire.WalkedFlags.TRUNCATED

    def _told(self, channel: Channel, convert: Callable[[Any], T], row: Message) -> T:
        try:
            return convert(row)
        except WireError as error:
            raise channel.breach(str(error)) from None

    def _told_info(self, channel: Channel, row: wire.File) -> FileInfo:
        return self._told(channel, self._info, row)

    def _info(self, row: wire.File) -> FileInfo:
        kind = _KINDS.get(row.kind)
        if kind is None or row.mode > 0o7777:
            raise WireError("a file that no kernel has")
        return FileInfo(
            path=self._place.name(row.path),
            kind=kind,
            size_bytes=row.size,
            mode=row.mode,
            uid=row.uid,
            gid=row.gid,
            modified_at=row.modified / 1e9,
            target=show(row.target) if kind is FileKind.SYMLINK else None,
        )

    def _match(self, row: wire.Match) -> GrepMatch:
        line = show(row.line)[:_LINE_CHARACTERS]
        return GrepMatch(path=self._place.name(row.path), line_number=row.line_number, line=line)

    def _change(self, row: wire.Change) -> FileChange:
        kind = _CHANGES.get(row.kind)
        if kind is None:
            raise WireError("a change that is none")
        return FileChange(path=self._place.name(row.path), kind=kind)


class Changes:
    def __init__(self, channel: Channel, convert: Callable[[wire.Change], FileChange]) -> None:
        self._rows, self._channel, self._convert = _Rows(channel), channel, convert

    async def next(self) -> tuple[FileChange, ...]:
        return tuple([self._convert(row) for row in await self._rows.some(wire.Change)])

    async def aclose(self) -> None:
        self._channel.close()


class _Rows:
    """Bodies of one type, each behind its length, from a stream of a guest's: it chooses the pieces, and may lie."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._output = channel, channel.outputs[Stream.OUT]
        self._rest = bytearray()
        self.total = 0

    async def some(self, type: type[M]) -> list[M]:
        """Return what is there, at least one; nothing at the end."""
        while True:
            data = await self._output.read()
            if not data:
                if self._rest:
                    raise self._channel.breach("a row without an end")
                return []
            self.total += len(data)
            self._rest += data
            try:
                rows = self._whole(type)
            except WireError as error:
                raise self._channel.breach(f"a row with {error}") from None
            if rows:
                return rows

    def _whole(self, type: type[M]) -> list[M]:
        rows: list[M] = []
        at, end = 0, len(self._rest)
        while end - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest, at)
            if not 0 < length <= _MOST_OF_A_ROW:
                raise WireError(f"the length {length}")
            if end - at < _LENGTH.size + length:
                break
            at += _LENGTH.size
            rows.append(type.unpack(bytes(self._rest[at : at + length])))
            at += length
        del self._rest[:at]
        return rows


async def perform(connection: GuestConnection, action: Action[T]) -> T:
    """By the user whose agent the connection leads to. FileError with the errno's name."""
    area, _, name = action.TAG.partition(".")
    serve = getattr(_Files(connection), name, None) if area in ("file", "tree", "port") else None
    if serve is None:
        raise UnsupportedError(f"{type(action).__name__} is not an action on files")
    return await serve(action)


async def pack_whole(connection: GuestConnection, path: str, left_out: Sequence[str] = ()) -> FileReader:
    """Read an archive of all below a directory, with owners and metadata. `left_out` are relative to `path`."""
    message = wire.Download(flags=wire.DownloadFlags.WHOLE, path=encode(path), left_out=tuple(map(encode, left_out)))
    return await open_reader(connection, ask(Op.DOWNLOAD, message, of_file, path), EmptyBody, works=True)


async def unpack_exact(
    connection: GuestConnection, path: str, left_out: Sequence[str] = (), *, owner: tuple[int, int] | None = None
) -> FileWriter:
    """Extract an archive of `pack_whole`, or of an engine; all of it belongs to `owner`, a uid and a gid. All other
    processes stop meanwhile."""
    message = wire.Upload(
        flags=wire.UploadFlags.EXACT, path=encode(path), left_out=tuple(map(encode, left_out)), owner=owner or ()
    )
    request = ask(Op.UPLOAD, message, of_file, path, "what can be laid there")
    return await open_writer(connection, request, works=True, info=lambda channel, file: None)
