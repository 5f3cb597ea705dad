"""A guest that lies: the other end of a connection, in real frames, which does with each request as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from struct import Struct
from typing import Any

from paddock.backends.guest import GuestDefaults, accept, perform
from paddock.backends.guest.connection import GuestConnection
from paddock.backends.guest.exec import attach, execs, output, signal_exec, start_background, start_foreground
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
    ExecReply,
    Exit,
    File,
    GuestHello,
    Kind,
    Limit,
    Walked,
)
from tests import frames

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
    return frames.data(1, stream, content)


def row(message: Any) -> bytes:
    body = message.pack()
    return len(body).to_bytes(4, "little") + body


INFO = File(kind=1, mode=0o644, size=1, path=b"/box/x").pack()
EXIT = frames.pack(Kind.EXIT, 1, Exit(code=0, duration=1).pack())
CLOSE = frames.close(1)
EOF = frames.eof(1, 1)
WALKED = frames.pack(Kind.EXIT, 1, Walked().pack())

RUNS = reply(ExecReply(pid=1).pack()) + EOF + frames.eof(1, 2)

Call = Callable[[GuestConnection], Awaitable[Any]]


def file(kind: Any, **fields: Any) -> Call:
    return lambda connection: perform(connection, kind(sandbox="sb_1", **fields))


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
    "connect": file(ConnectPort, port=80),
    "accept": lambda connection: accept(connection, "/door"),
    "execs": execs,
    "signal": lambda connection: signal_exec(connection, ID, 1),
}


class Peer:
    """The guest's end. `serve` is called with each OPEN: its channel, operation and body."""

    def __init__(self, stream: socket.socket, serve: Callable[[Peer, int, int], Awaitable[None]]) -> None:
        stream.setblocking(False)
        self._socket, self._serve = stream, serve
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._granted, self.full = asyncio.Event(), asyncio.Event()
        self._credit = Limit.WINDOW
        self.opened: list[int] = []
        self.fds: list[int] = []
        self.said = 0

    async def say(self, wire: bytes) -> None:
        await self._loop.sock_sendall(self._socket, wire)

    async def answer(self, channel: int, body: bytes = b"") -> None:
        await self.say(frames.pack(Kind.REPLY, channel, body) + frames.close(channel))

    async def pour(self, piece: bytes) -> None:
        """For ever, on stream 1 of the first channel, as the host has room; through the pipe, if it has given one."""
        while True:
            if self.fds:
                self.said += await asyncio.to_thread(os.write, self.fds[0], piece)
                continue
            while self._credit < len(piece):
                self._granted.clear()
                self.full.set()
                await self._granted.wait()
            self._credit -= len(piece)
            await self.say(data(piece))
            self.said += len(piece)

    async def run(self, greeting: bytes) -> None:
        await self.say(greeting)
        buffer = bytearray()
        while True:
            await self._readable()
            got, fds, _, _ = socket.recv_fds(self._socket, 1 << 18, 16)
            if not got:
                return
            self.fds += fds
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

    async def _readable(self) -> None:
        readable = self._loop.create_future()
        self._loop.add_reader(self._socket, lambda: readable.done() or readable.set_result(None))
        try:
            await readable
        finally:
            self._loop.remove_reader(self._socket)

    async def _served(self, channel: int, code: int) -> None:
        with contextlib.suppress(OSError):
            await self._serve(self, channel, code)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()
        for fd in self.fds:
            os.close(fd)


@asynccontextmanager
async def lying(
    serve: Callable[[Peer, int, int], Awaitable[None]], greeting: bytes = b"", *, descriptors: bool = False
) -> AsyncGenerator[tuple[GuestConnection, Peer]]:
    ours, theirs = socket.socketpair()
    connection = GuestConnection(ours, GuestDefaults(workdir="/w", env={}, root="/box"))
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
