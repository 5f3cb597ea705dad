"""Whatever a native guest says or leaves unsaid, the host bounds it: garbage, floods, silence."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from struct import Struct
from typing import Any

import pytest

from paddock.backends._guest_connection import GuestConnection
from paddock.backends._guest_exec import attach, output, start_background, start_foreground
from paddock.backends.guest import NativeDialect, Place
from paddock.backends.guest import _frames as frames
from paddock.errors import FileError, GuestLost, GuestProtocolError, InvalidArgument, PaddockError, SandboxError
from paddock.guest._frames import MAX_RESULT_BYTES, Kind
from paddock.model import (
    ConnectPort,
    CopyFile,
    DownloadTree,
    ExecId,
    ExecSpec,
    FindFiles,
    GrepFiles,
    ListFiles,
    MakeDirectory,
    MoveFile,
    PtySize,
    ReadFile,
    RemoveFile,
    SetFileAttributes,
    StatFile,
    UploadTree,
    WatchFiles,
    WriteFile,
)
from paddock.wire.guest import (
    VERSION,
    AttachReply,
    Change,
    Error,
    ExecReply,
    ExecsReply,
    Exit,
    File,
    GuestHello,
    Limit,
    Listed,
    Match,
    Op,
    PingReply,
    ReadReply,
    Walked,
)

HEADER = Struct("<IHHIBBH")
ID = ExecId("ex_1")
UNDER_WAY = 2 * Limit.WINDOW
"""Bytes that a connection's socket and one stream's window hold at most."""
EXAMPLES = 60


def hello(version: int = VERSION) -> bytes:
    return frames.pack(Kind.HELLO, 0, GuestHello(version=version, pid=7).pack())


def reply(body: bytes = b"") -> bytes:
    return frames.pack(Kind.REPLY, 1, body)


def data(content: bytes, stream: int = 1) -> bytes:
    return frames.data_header(1, stream, len(content)) + content


def row(message: Any) -> bytes:
    body = message.pack()
    return len(body).to_bytes(4, "little") + body


INFO = File(kind=1, mode=0o644, size=1, path=b"/box/x").pack()
EXIT = frames.pack(Kind.EXIT, 1, Exit(code=0, duration=1).pack())
CLOSE = frames.pack_close(1)
EOF = frames.pack_eof(1, 1)
WALKED = frames.pack(Kind.EXIT, 1, Walked().pack())

RUNS = reply(ExecReply(pid=1).pack()) + EOF + frames.pack_eof(1, 2)

Call = Callable[[GuestConnection], Awaitable[Any]]


def file(kind: Any, **fields: Any) -> Call:
    return lambda connection: connection.dialect.perform(connection, kind(sandbox="sb_1", **fields))


async def foreground(connection: GuestConnection, **spec: Any) -> Any:
    return await start_foreground(connection, ExecSpec(argv=("x",), **spec), ID, None)


CALLS: dict[str, Call] = {
    "stat": file(StatFile, path="p"),
    "mkdir": file(MakeDirectory, path="p"),
    "set": file(SetFileAttributes, path="p", mode=0o600),
    "move": file(MoveFile, source="a", destination="b"),
    "copy": file(CopyFile, source="a", destination="b"),
    "remove": file(RemoveFile, path="p"),
    "list": file(ListFiles, path="p"),
    "find": file(FindFiles, path="p", limit=10),
    "grep": file(GrepFiles, path="p", pattern="x", limit=10),
    "read": file(ReadFile, path="p", length=1000),
    "download": file(DownloadTree, path="p"),
    "write": file(WriteFile, path="p"),
    "upload": file(UploadTree, path="p"),
    "watch": file(WatchFiles, path="p"),
    "exec": foreground,
    "terminal": lambda connection: foreground(connection, pty=PtySize()),
    "background": lambda connection: start_background(connection, ExecSpec(argv=("x",)), ID, None),
    "attach": lambda connection: attach(connection, ID).started(),
    "output": lambda connection: output(connection, ID, 1),
    "execs": lambda connection: connection.dialect.execs(connection),
    "signal": lambda connection: connection.open(connection.dialect.signal(ID, 1)).call(connection.dialect.nothing),
}


class Peer:
    """The guest's end. `serve` is called with each OPEN: its channel, operation and body."""

    def __init__(self, stream: socket.socket, serve: Callable[[Peer, int, int], Awaitable[None]]) -> None:
        stream.setblocking(False)
        self._socket, self._serve = stream, serve
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._granted = asyncio.Event()
        self._credit = Limit.WINDOW
        self.opened: list[int] = []
        self.said = 0

    async def say(self, wire: bytes) -> None:
        await self._loop.sock_sendall(self._socket, wire)

    async def pour(self, piece: bytes) -> None:
        """For ever, on stream 1 of the first channel, as the host has room."""
        while True:
            while self._credit < len(piece):
                self._granted.clear()
                await self._granted.wait()
            self._credit -= len(piece)
            await self.say(data(piece))
            self.said += len(piece)

    async def run(self, greeting: bytes) -> None:
        await self.say(greeting)
        buffer = bytearray()
        while got := await self._loop.sock_recv(self._socket, 1 << 18):
            buffer += got
            while len(buffer) >= HEADER.size:
                length, kind, code, channel, *_ = HEADER.unpack_from(buffer)
                if len(buffer) < HEADER.size + length:
                    break
                body = bytes(buffer[HEADER.size : HEADER.size + length])
                del buffer[: HEADER.size + length]
                if kind == Kind.OPEN:
                    self.opened.append(code)
                    self._tasks.append(self._loop.create_task(self._served(channel, code)))
                elif kind == Kind.CREDIT and channel == 1:
                    self._credit += int.from_bytes(body, "little")
                    self._granted.set()

    async def _served(self, channel: int, code: int) -> None:
        with contextlib.suppress(OSError):
            await self._serve(self, channel, code)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()


@asynccontextmanager
async def lying(
    serve: Callable[[Peer, int, int], Awaitable[None]], greeting: bytes = b"", *, descriptors: bool = False
) -> AsyncGenerator[tuple[GuestConnection, Peer]]:
    ours, theirs = socket.socketpair()
    connection = GuestConnection(ours, NativeDialect(Place(workdir="/w", env={}, root="/box")))
    connection.descriptors = descriptors
    peer = Peer(theirs, serve)
    running = asyncio.ensure_future(peer.run(greeting or hello()))
    try:
        async with asyncio.timeout(60):
            yield connection, peer
    finally:
        connection.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await peer.close()


async def consumed(result: Any) -> None:
    if hasattr(result, "read"):
        while await result.read():
            pass
    elif hasattr(result, "next"):
        while await result.next():
            pass
    elif hasattr(result, "wait"):
        try:
            while result.stdout is not None and await result.stdout.read():
                pass
            await result.wait()
        finally:
            await result.aclose()


def answered(wire: bytes, call: Call, *, greeting: bytes = b"", descriptors: bool = False) -> None:
    """The guest says `wire` to the first request, and then hangs up."""

    async def serve(peer: Peer, channel: int, code: int) -> None:
        if channel == 1:
            await peer.say(wire)
            peer._socket.shutdown(socket.SHUT_WR)

    async def main() -> None:
        async with lying(serve, greeting, descriptors=descriptors) as (connection, _):
            await consumed(await call(connection))
            if connection.closed:
                raise await connection.why()

    asyncio.run(main())


def raw(kind: int, *, length: int = 0, code: int = 0, channel: int = 1, descriptors: int = 0, zeros: int = 0) -> bytes:
    return HEADER.pack(length, kind, code, channel, descriptors, 0, zeros)


GARBAGE = {
    "an unknown kind": ("stat", raw(11)),
    "a request of its own": ("stat", raw(Kind.OPEN)),
    "an order": ("stat", raw(Kind.CONTROL)),
    "descriptors": ("stat", raw(Kind.REPLY, descriptors=1)),
    "bytes that are not zero": ("stat", raw(Kind.REPLY, zeros=1)),
    "a body without an end": ("stat", raw(Kind.REPLY, length=Limit.BODY + 1)),
    "a code where there is none": ("stat", raw(Kind.REPLY, code=1)),
    "an unknown stream": ("read", reply(ReadReply().pack()) + raw(Kind.EOF, code=3)),
    "a channel that was not opened": ("stat", raw(Kind.REPLY, channel=9)),
    "no channel": ("stat", raw(Kind.REPLY, channel=0)),
    "a second greeting": ("stat", hello()),
    "data before the answer": ("read", data(b"x")),
    "data of no bytes": ("read", reply(ReadReply().pack()) + raw(Kind.DATA, code=1)),
    "credit of nothing": ("write", reply() + frames.pack_credit(1, 0, 0)),
    "credit for what is not sent": ("read", reply(ReadReply().pack()) + frames.pack_credit(1, 1, 5)),
    "credit without end": ("stat", frames.pack_credit(1, 0, Limit.CREDIT + 1)),
    "an end with a body": ("stat", raw(Kind.CLOSE, length=1) + b"x"),
    "an end in place of an answer": ("stat", CLOSE),
    "a second answer": ("stat", reply(INFO) * 2),
    "an answer of another shape": ("stat", reply(b"\1" * 16)),
    "an answer with more": ("signal", reply(b"\0" * 8)),
    "an unknown kind of file": ("stat", reply(File(kind=9, path=b"/box/x").pack()) + CLOSE),
    "a file of elsewhere": ("stat", reply(File(kind=1, path=b"/boxes/x").pack()) + CLOSE),
    "an error that no kernel has": ("stat", frames.pack(Kind.ERROR, 1, Error(errno=4000).pack())),
    "no error": ("stat", frames.pack(Kind.ERROR, 1, Error(errno=0).pack())),
    "a malformed error": ("stat", frames.pack(Kind.ERROR, 1, b"x")),
    "a code and a signal": ("exec", RUNS + frames.pack(Kind.EXIT, 1, Exit(signal=9).pack())),
    "a second exit": ("exec", RUNS + EXIT * 2),
    "an unknown change": ("watch", reply() + data(row(Change(kind=9, path=b"/box/x")))),
    "a row of no bytes": ("list", reply() + data(bytes(4))),
    "a row without an end": ("list", reply() + data(b"\xff\xff\xff\x7f")),
    "half a row": ("list", reply() + data(b"\x10\0\0\0xx") + EOF + WALKED + CLOSE),
    "bytes without an end": ("read", reply(ReadReply(size=9).pack()) + data(b"half") + CLOSE),
    "a row of another shape": ("list", reply() + data(b"\x10\0\0\0" + b"x" * 16)),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_what_is_not_the_protocol_ends_the_connection(what: str) -> None:
    name, wire = GARBAGE[what]
    with pytest.raises(GuestProtocolError):
        answered(wire, CALLS[name])


@pytest.mark.parametrize("ended", [EOF, b""], ids=["at its end", "in the middle"])
@pytest.mark.parametrize("name", ["read", "download"])
def test_a_read_that_broke_off_is_not_taken_for_the_whole_file(name: str, ended: bytes) -> None:
    answer = ReadReply(size=9).pack() if name == "read" else b""
    failed = frames.pack(Kind.ERROR, 1, Error(errno=errno.EIO, step=b"read").pack())
    with pytest.raises(FileError, match="Input/output error"):
        answered(reply(answer) + data(b"half") + ended + failed, CALLS[name])


@pytest.mark.parametrize("greeting", [hello(VERSION + 1), CLOSE, frames.pack(Kind.HELLO, 0, b"x")])
def test_a_guest_of_another_version_is_not_talked_to(greeting: bytes) -> None:
    with pytest.raises(GuestProtocolError):
        answered(b"", CALLS["stat"], greeting=greeting)


def poured(call: Call, answer: bytes, piece: bytes, most: int) -> None:
    """The guest says `piece` for ever, and the host takes no more of it than so many bytes."""
    taken = 0

    async def serve(peer: Peer, channel: int, code: int) -> None:
        if channel == 1:
            await peer.say(reply(answer))
            await peer.pour(piece)

    async def main() -> None:
        nonlocal taken
        async with lying(serve) as (connection, peer):
            try:
                await consumed(await call(connection))
            finally:
                taken = peer.said

    try:
        asyncio.run(main())
    finally:
        assert taken <= most + UNDER_WAY


def test_results_without_an_end_are_cut_off() -> None:
    piece = row(File(kind=1, path=b"/box/" + b"x" * 4000)) * 15
    with pytest.raises(FileError, match="too much to list"):
        poured(CALLS["list"], b"", piece, MAX_RESULT_BYTES)


@pytest.mark.parametrize(
    ("name", "piece"),
    [("find", row(File(kind=1, path=b"/box/x"))), ("grep", row(Match(line_number=1, path=b"/box/x", line=b"x")))],
)
def test_more_items_than_were_asked_for_are_refused(name: str, piece: bytes) -> None:
    with pytest.raises(GuestProtocolError, match="more results"):
        poured(CALLS[name], b"", piece * 11, Limit.WINDOW)


def test_more_bytes_than_were_asked_for_are_refused() -> None:
    with pytest.raises(GuestProtocolError, match="more bytes"):
        poured(CALLS["read"], ReadReply(size=10).pack(), b"x" * 1001, Limit.WINDOW)


def test_more_data_than_was_granted_is_refused() -> None:
    wire = reply() + data(b"x" * Limit.BODY) * (Limit.WINDOW // Limit.BODY + 1)

    async def unread(connection: GuestConnection) -> Any:
        reader = await CALLS["download"](connection)
        await connection.dialect.execs(connection)
        return reader

    with pytest.raises(GuestProtocolError, match="beyond what was granted"):
        answered(wire, unread)


def test_a_list_of_commands_without_an_end_is_refused() -> None:
    listed = Listed(number=1, pid=1, id=b"ex_1", argv=(b"x",))

    async def serve(peer: Peer, channel: int, code: int) -> None:
        body = ExecsReply(before=1, execs=(listed,) * 100).pack()
        await peer.say(frames.pack(Kind.REPLY, channel, body) + frames.pack_close(channel))

    async def main() -> None:
        async with lying(serve) as (connection, peer):
            with pytest.raises(SandboxError, match="more commands"):
                await CALLS["execs"](connection)
            assert len(peer.opened) == 64

    asyncio.run(main())


def test_a_write_that_is_refused_on_the_way_waits_for_the_reason() -> None:
    """The guest reads no more before it has said why."""
    asked = asyncio.Event()

    async def serve(peer: Peer, channel: int, code: int) -> None:
        await peer.say(reply() + frames.pack_eof(1, 0))
        await asked.wait()
        await peer.say(frames.pack(Kind.ERROR, 1, Error(errno=errno.ENOSPC, step=b"write").pack()))

    async def main() -> None:
        async with lying(serve) as (connection, _):
            writer = await CALLS["write"](connection)
            writing = asyncio.ensure_future(writer.write(b"x"))
            asyncio.get_running_loop().call_soon(asked.set)
            with pytest.raises(FileError) as caught:
                await writing
            assert caught.value.details["errno"] == "ENOSPC"

    asyncio.run(main())


async def pings(peer: Peer, channel: int, code: int) -> None:
    if code == Op.PING:
        await peer.say(frames.pack(Kind.REPLY, channel, PingReply(pid=7).pack()) + frames.pack_close(channel))


async def silence(peer: Peer, channel: int, code: int) -> None:
    pass


@pytest.mark.parametrize(
    ("serve", "words"), [(pings, "answers, but has not done"), (silence, "has not answered")], ids=["pings", "silent"]
)
def test_no_call_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch, serve: Callable[[Peer, int, int], Awaitable[None]], words: str
) -> None:
    for name in ("patience_seconds", "answer_seconds", "work_seconds"):
        monkeypatch.setattr(GuestConnection, name, 2.0)

    async def error_of(call: Call) -> BaseException | None:
        async with lying(serve) as (connection, _):
            try:
                await call(connection)
            except PaddockError as error:
                return error
        return None

    async def main() -> None:
        errors = await asyncio.gather(*map(error_of, CALLS.values()))
        for name, error in zip(CALLS, errors, strict=True):
            assert isinstance(error, GuestLost), (name, error)
            assert words in error.message, (name, error)

    asyncio.run(main())


def test_one_request_more_than_the_guest_takes_is_refused_and_costs_nobody_the_connection() -> None:
    async def main() -> None:
        async with lying(pings) as (connection, _):
            dialect = connection.dialect
            for _ in range(dialect.most_requests):
                connection.open(dialect.signal(ID, 1))
            with pytest.raises(SandboxError, match="requests to one sandbox"):
                connection.open(dialect.signal(ID, 1))
            await connection.open(dialect.ping).call(PingReply)

    asyncio.run(main())


def test_what_cannot_be_said_is_refused_before_it_is_sent() -> None:
    wrong: list[Call] = [
        file(StatFile, path=""),
        file(StatFile, path="a\0b"),
        file(StatFile, path="\ud800"),
        file(SetFileAttributes, path="p", uid=1 << 32),
        file(FindFiles, path="p", limit=-1),
        file(ReadFile, path="p", offset=1 << 64),
        lambda connection: foreground(connection, env={"A=B": "c"}),
        lambda connection: foreground(connection, env={"A": "c\0"}),
        lambda connection: foreground(connection, pty=PtySize(rows=1 << 16)),
        lambda connection: start_background(connection, ExecSpec(argv=("x",), timeout_seconds=-1), ID, None),
        lambda connection: start_foreground(connection, ExecSpec(argv=("x",)), ExecId("x" * 65), None),
        file(GrepFiles, path="p", pattern="x" * 9000),
        file(ConnectPort, port=0),
        file(ConnectPort, port=1 << 16),
    ]

    async def main() -> None:
        async with lying(silence) as (connection, peer):
            for call in wrong:
                with pytest.raises(InvalidArgument):
                    await call(connection)
            with pytest.raises(FileError) as caught:
                await file(StatFile, path="x" * 5000)(connection)
            assert caught.value.details["errno"] == errno.errorcode[errno.ENAMETOOLONG]
            assert not peer.opened

    asyncio.run(main())


STREAMED = reply(ExecReply(pid=3).pack()) + data(b"out" * 50) + data(b"err", stream=2) + frames.pack_credit(1, 0, 4096)
STREAMED += EOF + frames.pack_eof(1, 2) + EXIT + CLOSE
LISTED = reply() + data(row(File(kind=1, path=b"/box/x")) * 5) + EOF + WALKED + CLOSE
MATCHED = reply() + data(row(Match(line_number=1, path=b"/box/x", line=b"x"))) + EOF + WALKED + CLOSE
TALKS = {
    "exec": STREAMED,
    "terminal": STREAMED,
    "attach": reply(AttachReply(pid=3).pack()) + STREAMED[len(reply(ExecReply(pid=3).pack())) :],
    "stat": reply(INFO) + CLOSE,
    "list": LISTED,
    "find": LISTED,
    "grep": MATCHED,
    "watch": reply() + data(row(Change(kind=1, path=b"/box/x"))) + EOF + CLOSE,
    "read": reply(ReadReply(size=9).pack()) + data(b"123456789") + EOF + CLOSE,
    "execs": reply(ExecsReply(execs=(Listed(number=1, pid=1, id=b"ex_1", argv=(b"x",)),)).pack()) + CLOSE,
    "copy": reply() + frames.pack(Kind.EXIT, 1, INFO) + CLOSE,
}
_TELLING = (b"\0", b"\xff" * 4, bytes(4), bytes(8), b"\1\0\0\0", b"\0\0\1\0", b"/box", b"\x7f")


def damaged(wire: bytes, choose: random.Random) -> bytes:
    work = bytearray(wire)
    for _ in range(choose.choice((1, 1, 1, 2, 3, 8))):
        at = choose.randrange(len(work) + 1)
        length = choose.choice((1, 1, 2, 4, 9, 40))
        match choose.randrange(5):
            case 0:
                work[at : at + 1] = bytes([choose.randrange(256)])
            case 1:
                del work[at : at + length]
            case 2:
                work[at:at] = work[at : at + length]
            case 3:
                work[at:at] = choose.choice(_TELLING)
            case _:
                work[at : at + 4] = choose.choice((b"\0\0\0\1", b"\0\4\0\x40", b"\x7f\xff\xff\xff"))
    return bytes(work)


@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("descriptors", [False, True])
def test_a_damaged_conversation_ends_in_a_result_or_an_error_of_ours(talk: str, descriptors: bool) -> None:
    choose = random.Random(f"{talk} {descriptors}")
    for _ in range(EXAMPLES):
        with contextlib.suppress(PaddockError, BrokenPipeError):
            answered(damaged(TALKS[talk], choose), CALLS[talk], descriptors=descriptors)


def test_damaged_frames_are_read_or_refused_in_little_memory() -> None:
    choose = random.Random("frames")
    for _ in range(20_000):
        decoder = frames.Decoder()
        wire = damaged(choose.choice(list(TALKS.values())), choose)
        step = choose.choice((1, 7, 100, 1 << 16))
        with contextlib.suppress(frames.ProtocolError):
            for at in range(0, len(wire), step):
                decoder.feed(wire[at : at + step])
        assert decoder.pending_bytes <= Limit.BODY + HEADER.size
