"""File actions, put to a native guest. One function per action."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeVar

from paddock.backends._guest_files import FileReader, FileWriter, open_reader, open_writer
from paddock.backends._guest_frames import ProtocolError
from paddock.backends._guest_ports import PortStream, connect
from paddock.errors import FileError, Unsupported
from paddock.model import (
    Action,
    ConnectPort,
    CopyFile,
    DownloadTree,
    FileChange,
    FileInfo,
    FileKind,
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
from paddock.wire import WireError
from paddock.wire._message import Message
from paddock.wire.guest import (
    Change,
    Copy,
    Download,
    File,
    Find,
    Grep,
    List,
    Match,
    Mkdir,
    MkdirFlags,
    Move,
    Op,
    Read,
    ReadReply,
    Remove,
    RemoveFlags,
    Set,
    SetFlags,
    Stat,
    StatFlags,
    Stream,
    Upload,
    Walked,
    WalkedFlags,
    Watch,
    WatchFlags,
    Write,
    WriteFlags,
)

from ._place import Place, encode, show
from ._requests import Nothing, Request, ask, of_copy, of_file

if TYPE_CHECKING:
    from paddock.backends._guest_channel import Channel
    from paddock.backends._guest_connection import GuestConnection

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
    def __init__(self, connection: GuestConnection, place: Place) -> None:
        self._connection, self._place = connection, place

    async def stat(self, action: StatFile) -> FileInfo:
        message = Stat(flags=StatFlags.FOLLOW if action.follow else 0, path=self._place.locate(action.path))
        return await self._call(ask(Op.STAT, message, of_file(action.path)))

    async def mkdir(self, action: MakeDirectory) -> FileInfo:
        flags = MkdirFlags.PARENTS if action.parents else MkdirFlags(0)
        if action.mode is not None:
            flags |= MkdirFlags.MODE
        message = Mkdir(flags=flags, mode=action.mode or 0, path=self._place.locate(action.path))
        return await self._call(ask(Op.MKDIR, message, of_file(action.path)))

    async def set(self, action: SetFileAttributes) -> FileInfo:
        flags = SetFlags(0)
        for flag, value in ((SetFlags.MODE, action.mode), (SetFlags.UID, action.uid), (SetFlags.GID, action.gid)):
            if value is not None:
                flags |= flag
        message = Set(
            flags=flags,
            mode=action.mode or 0,
            uid=action.uid or 0,
            gid=action.gid or 0,
            path=self._place.locate(action.path),
        )
        return await self._call(ask(Op.SET, message, of_file(action.path)))

    async def move(self, action: MoveFile) -> FileInfo:
        message = Move(**self._both(action))
        return await self._work(ask(Op.MOVE, message, of_file(action.source)))

    async def copy(self, action: CopyFile) -> FileInfo:
        message = Copy(**self._both(action))
        return await self._work(ask(Op.COPY, message, of_copy(action.source)))

    def _both(self, action: MoveFile | CopyFile) -> dict[str, bytes]:
        return {
            "source": self._place.locate(action.source, "source"),
            "destination": self._place.locate(action.destination, "destination"),
        }

    async def remove(self, action: RemoveFile) -> None:
        flags = RemoveFlags.RECURSIVE if action.recursive else RemoveFlags(0)
        if action.missing_ok:
            flags |= RemoveFlags.MISSING_OK
        message = Remove(flags=flags, path=self._place.locate(action.path))
        channel = self._connection.open(ask(Op.REMOVE, message, of_file(action.path)))
        try:
            with channel.attended(works=True):
                await channel.reply(Nothing)
                await channel.finished()
        except BaseException:
            channel.close()
            raise

    async def list(self, action: ListFiles) -> tuple[FileInfo, ...]:
        message = List(depth=action.depth, path=self._place.locate(action.path))
        found, whole = await self._rows(ask(Op.LIST, message, of_file(action.path)), File, None)
        if not whole:
            raise FileError(f"too much to list below {action.path}", hint="list with a smaller depth", errno="EFBIG")
        return tuple(found)

    async def find(self, action: FindFiles) -> tuple[FileInfo, ...]:
        message = Find(limit=action.limit, path=self._place.locate(action.path), name=encode(action.name))
        found, _ = await self._rows(ask(Op.FIND, message, of_file(action.path)), File, action.limit)
        return tuple(found)

    async def grep(self, action: GrepFiles) -> tuple[GrepMatch, ...]:
        message = Grep(
            limit=action.limit,
            path=self._place.locate(action.path),
            name=encode(action.name),
            pattern=encode(action.pattern),
        )
        found, _ = await self._rows(
            ask(Op.GREP, message, of_file(action.path, "a regular expression of this guest's")), Match, action.limit
        )
        return tuple(found)

    async def read(self, action: ReadFile) -> FileReader:
        length = _ALL if action.length is None else action.length
        message = Read(offset=action.offset, length=length, path=self._place.locate(action.path))
        request = ask(Op.READ, message, of_file(action.path))
        return await open_reader(self._connection, request, ReadReply, most=action.length)

    async def download(self, action: DownloadTree) -> FileReader:
        request = ask(Op.DOWNLOAD, Download(path=self._place.locate(action.path)), of_file(action.path))
        return await open_reader(self._connection, request, Nothing, works=True)

    async def write(self, action: WriteFile) -> FileWriter:
        flags = WriteFlags.APPEND if action.append else WriteFlags(0)
        if action.mode is not None:
            flags |= WriteFlags.MODE
        message = Write(flags=flags, mode=action.mode or 0, path=self._place.locate(action.path))
        return await self._writer(ask(Op.WRITE, message, of_file(action.path)), works=False)

    async def upload(self, action: UploadTree) -> FileWriter:
        request = ask(Op.UPLOAD, Upload(path=self._place.locate(action.path)), of_file(action.path, _ARCHIVE))
        return await self._writer(request, works=True)

    async def _writer(self, request: Request, *, works: bool) -> FileWriter:
        def make(channel: Channel, pipe: Any) -> FileWriter:
            return _Writer(channel, pipe, works=works, info=lambda file: self._told(channel, self._info, file))

        return await open_writer(self._connection, request, Nothing, make)

    async def watch(self, action: WatchFiles) -> Changes:
        flags = WatchFlags.RECURSIVE if action.recursive else 0
        request = ask(Op.WATCH, Watch(flags=flags, path=self._place.locate(action.path)), of_file(action.path))
        channel = self._connection.open(request, receives=(Stream.OUT,))
        try:
            with channel.attended(works=True):
                await channel.reply(Nothing)
        except BaseException:
            channel.close()
            raise
        return Changes(channel, lambda row: self._told(channel, self._change, row))

    async def connect(self, action: ConnectPort) -> PortStream:
        return await connect(self._connection, action)

    async def _call(self, request: Request) -> FileInfo:
        channel = self._connection.open(request)
        return self._told(channel, self._info, await channel.call(File))

    async def _work(self, request: Request) -> FileInfo:
        channel = self._connection.open(request)
        try:
            with channel.attended(works=True):
                await channel.reply(Nothing)
                return self._told(channel, self._info, await channel.result(File))
        except BaseException:
            channel.close()
            raise

    async def _rows(self, request: Request, type: type[Message], most: int | None) -> tuple[list[Any], bool]:
        """And whether that is all. The guest is believed neither in how many they are nor in how much."""
        channel = self._connection.open(request, receives=(Stream.OUT,))
        convert: Callable[[Any], Any] = self._info if type is File else self._match
        found: list[Any] = []
        rows = _Rows(channel)
        try:
            with channel.attended(works=True):
                await channel.reply(Nothing)
                while some := await rows.some(type):
                    found += [self._told(channel, convert, row) for row in some]
                    if most is not None and len(found) > most:
                        raise channel.breach("more results than it may send")
                    if rows.total > MAX_RESULT_BYTES:
                        channel.close()
                        return found, False
                ended = await channel.result(Walked)
                return found, not ended.flags & WalkedFlags.TRUNCATED
        except BaseException:
            channel.close()
            raise

    def _told(self, channel: Channel, convert: Callable[[Any], T], row: Message) -> T:
        try:
            return convert(row)
        except ProtocolError as error:
            raise channel.breach(str(error)) from None

    def _info(self, row: File) -> FileInfo:
        kind = _KINDS.get(row.kind)
        if kind is None or row.mode > 0o7777:
            raise ProtocolError("a file that no kernel has")
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

    def _match(self, row: Match) -> GrepMatch:
        line = show(row.line)[:_LINE_CHARACTERS]
        return GrepMatch(path=self._place.name(row.path), line_number=row.line_number, line=line)

    def _change(self, row: Change) -> FileChange:
        kind = _CHANGES.get(row.kind)
        if kind is None:
            raise ProtocolError("a change that is none")
        return FileChange(path=self._place.name(row.path), kind=kind)


class _Writer(FileWriter):
    def __init__(self, channel: Channel, pipe: Any, *, works: bool, info: Callable[[File], FileInfo]) -> None:
        super().__init__(channel, pipe, works=works)
        self._convert = info

    async def _info(self) -> FileInfo:
        return self._convert(await self._channel.result(File))


class Changes:
    def __init__(self, channel: Channel, convert: Callable[[Change], FileChange]) -> None:
        self._rows, self._channel, self._convert = _Rows(channel), channel, convert

    async def next(self) -> tuple[FileChange, ...]:
        return tuple([self._convert(row) for row in await self._rows.some(Change)])

    async def aclose(self) -> None:
        self._channel.close()


class _Rows:
    """Bodies of one type, each behind its length, from a stream of a guest's: it chooses the pieces, and may lie."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._rest = bytearray()
        self.total = 0

    async def some(self, type: type[M]) -> list[M]:
        """What is there, at least one; nothing at the end."""
        while True:
            data = await self._channel.read(Stream.OUT, 65536)
            if not data:
                if self._rest:
                    raise self._channel.breach("a row without an end")
                return []
            self.total += len(data)
            self._rest += data
            try:
                rows = self._whole(type)
            except (WireError, ProtocolError) as error:
                raise self._channel.breach(f"a row with {error}") from None
            if rows:
                return rows

    def _whole(self, type: type[M]) -> list[M]:
        rows: list[M] = []
        at, end = 0, len(self._rest)
        while end - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest, at)
            if not 0 < length <= _MOST_OF_A_ROW:
                raise ProtocolError(f"the length {length}")
            if end - at < _LENGTH.size + length:
                break
            at += _LENGTH.size
            rows.append(type.unpack(bytes(self._rest[at : at + length])))
            at += length
        del self._rest[:at]
        return rows


_SERVED: dict[type[Action[Any]], Callable[[_Files, Any], Awaitable[Any]]] = {
    StatFile: _Files.stat,
    MakeDirectory: _Files.mkdir,
    SetFileAttributes: _Files.set,
    MoveFile: _Files.move,
    CopyFile: _Files.copy,
    RemoveFile: _Files.remove,
    ListFiles: _Files.list,
    FindFiles: _Files.find,
    GrepFiles: _Files.grep,
    ReadFile: _Files.read,
    WriteFile: _Files.write,
    UploadTree: _Files.upload,
    DownloadTree: _Files.download,
    WatchFiles: _Files.watch,
    ConnectPort: _Files.connect,
}


async def perform(connection: GuestConnection, place: Place, action: Action[T]) -> T:
    """By the user whose agent the connection leads to. FileError with the errno's name."""
    serve = _SERVED.get(type(action))
    if serve is None:
        raise Unsupported(f"{type(action).__name__} is no action on files")
    return await serve(_Files(connection, place), action)
