"""File operations of the real program, asked and answered whole."""

from __future__ import annotations

import os
from typing import NamedTuple, TypeVar

from paddock.backends.guest._regex import compile_pattern
from paddock.wire.guest import (
    Change,
    Copy,
    Credit,
    Download,
    Error,
    File,
    Find,
    Grep,
    Kind,
    Limit,
    List,
    Match,
    Mkdir,
    Move,
    Op,
    Read,
    Remove,
    Set,
    Stat,
    Stream,
    Upload,
    Walked,
    Watch,
    WatchFlags,
    Write,
)
from paddock.wire.message import Message
from tests.native.driver import Connection, GuestError, frame

T = TypeVar("T", bound=Message)
ALL = (1 << 64) - 1


class Outcome(NamedTuple):
    reply: bytes
    out: bytes
    exit: bytes | None


class Operation:
    """One that is under way."""

    def __init__(self, host: Connection, op: Op, request: Message) -> None:
        self.host = host
        self.channel = host.open(op, request.pack())
        self._window = Limit.WINDOW

    def send(self, data: bytes) -> None:
        """All of it, which must be less than its credit."""
        self.host.data(self.channel, data)

    def eof(self) -> None:
        self.host.send(frame(Kind.EOF, Stream.IN, self.channel))

    def close(self) -> None:
        self.host.send(frame(Kind.CLOSE, channel=self.channel))
        while self.host.for_channel(self.channel).kind not in (Kind.CLOSE, Kind.ERROR):
            pass

    def finish(self, data: bytes | None = None) -> Outcome:
        reply, out, end = b"", bytearray(), None
        left = memoryview(data or b"")
        if data is not None:
            left = self._feed(left)
        while True:
            got = self.host.for_channel(self.channel)
            match got.kind:
                case Kind.REPLY:
                    reply = got.body
                case Kind.DATA:
                    out += got.body
                    self.host.credit(self.channel, Stream.OUT, len(got.body))
                case Kind.CREDIT:
                    self._window += Credit.unpack(got.body).bytes
                    if data is not None and left:
                        left = self._feed(left)
                case Kind.EXIT:
                    end = got.body
                case Kind.CLOSE:
                    return Outcome(reply, bytes(out), end)
                case Kind.ERROR:
                    raise GuestError(Error.unpack(got.body))
                case _:
                    assert got.kind == Kind.EOF

    def _feed(self, left: memoryview) -> memoryview:
        count = min(self._window, len(left))
        self.host.data(self.channel, bytes(left[:count]))
        self._window -= count
        if count == len(left):
            self.eof()
        return left[count:]


def rows(out: bytes, kind: type[T]) -> list[T]:
    found: list[T] = []
    at = 0
    while at < len(out):
        end = at + 4 + int.from_bytes(out[at : at + 4], "little")
        found.append(kind.unpack(out[at + 4 : end]))
        at = end
    return found


class Files:
    """Below a directory, which stands before all paths."""

    def __init__(self, host: Connection, root: os.PathLike[str]) -> None:
        self.host = host
        self.root = os.fsencode(root)

    def at(self, path: str | bytes) -> bytes:
        return os.path.join(self.root, os.fsencode(path))

    def _call(self, op: Op, request: Message, data: bytes | None = None) -> Outcome:
        return Operation(self.host, op, request).finish(data)

    def stat(self, path: str | bytes, flags: int = 0) -> File:
        return File.unpack(self._call(Op.STAT, Stat(path=self.at(path), flags=flags)).reply)

    def mkdir(self, path: str | bytes, flags: int = 1, mode: int = 0) -> File:
        return File.unpack(self._call(Op.MKDIR, Mkdir(path=self.at(path), flags=flags, mode=mode)).reply)

    def set(self, path: str | bytes, flags: int, **values: int) -> File:
        return File.unpack(self._call(Op.SET, Set(path=self.at(path), flags=flags, **values)).reply)

    def remove(self, path: str | bytes, flags: int = 0) -> None:
        self._call(Op.REMOVE, Remove(path=self.at(path), flags=flags))

    def move(self, source: str | bytes, destination: str | bytes) -> File:
        request = Move(source=self.at(source), destination=self.at(destination))
        return File.unpack(self._call(Op.MOVE, request).exit or b"")

    def copy(self, source: str | bytes, destination: str | bytes) -> File:
        request = Copy(source=self.at(source), destination=self.at(destination))
        return File.unpack(self._call(Op.COPY, request).exit or b"")

    def list(self, path: str | bytes, depth: int = 1) -> tuple[list[File], int]:
        outcome = self._call(Op.LIST, List(path=self.at(path), depth=depth))
        return rows(outcome.out, File), Walked.unpack(outcome.exit or b"").flags

    def find(self, path: str | bytes, name: str | bytes = "*", limit: int = ALL) -> tuple[list[File], int]:
        outcome = self._call(Op.FIND, Find(path=self.at(path), name=os.fsencode(name), limit=limit))
        return rows(outcome.out, File), Walked.unpack(outcome.exit or b"").flags

    def grep(self, path: str | bytes, pattern: str, name: str = "*", limit: int = ALL) -> list[Match]:
        program = compile_pattern(pattern)._asdict()
        request = Grep(path=self.at(path), name=os.fsencode(name), **program, limit=limit)
        return rows(self._call(Op.GREP, request).out, Match)

    def read(self, path: str | bytes, offset: int = 0, length: int = ALL) -> bytes:
        return self._call(Op.READ, Read(path=self.at(path), offset=offset, length=length)).out

    def write(self, path: str | bytes, data: bytes, flags: int = 0, mode: int = 0) -> File:
        outcome = self._call(Op.WRITE, Write(path=self.at(path), flags=flags, mode=mode), data)
        return File.unpack(outcome.exit or b"")

    def upload(self, path: str | bytes, data: bytes) -> File:
        return File.unpack(self._call(Op.UPLOAD, Upload(path=self.at(path)), data).exit or b"")

    def download(self, path: str | bytes) -> bytes:
        return self._call(Op.DOWNLOAD, Download(path=self.at(path))).out


class Watching:
    """Changes, as (path below the root, kind)."""

    def __init__(self, files: Files, path: str, *, recursive: bool = False) -> None:
        flags = WatchFlags.RECURSIVE if recursive else 0
        self._files = files
        self._operation = Operation(files.host, Op.WATCH, Watch(path=files.at(path), flags=flags))
        self._rest = b""
        files.host.reply(self._operation.channel)

    def next(self) -> list[tuple[str, int]]:
        """At least one; none at the end."""
        found: list[tuple[str, int]] = []
        while not found:
            got = self._files.host.for_channel(self._operation.channel)
            if got.kind == Kind.ERROR:
                raise GuestError(Error.unpack(got.body))
            if got.kind != Kind.DATA:
                return []
            self._files.host.credit(self._operation.channel, Stream.OUT, len(got.body))
            self._rest += got.body
            found = self._whole()
        return found

    def _whole(self) -> list[tuple[str, int]]:
        data, end = self._rest, 0
        while len(data) - end >= 4 and len(data) - end >= 4 + int.from_bytes(data[end : end + 4], "little"):
            end += 4 + int.from_bytes(data[end : end + 4], "little")
        self._rest = data[end:]
        root = self._files.root + b"/"
        return [(os.fsdecode(row.path.removeprefix(root)), row.kind) for row in rows(data[:end], Change)]

    def until(self, wanted: set[tuple[str, int]]) -> set[tuple[str, int]]:
        seen: set[tuple[str, int]] = set()
        while not wanted <= seen:
            changes = self.next()
            assert changes, f"the watch ended before {wanted - seen}"
            seen.update(changes)
        return seen

    def close(self) -> None:
        self._operation.close()
