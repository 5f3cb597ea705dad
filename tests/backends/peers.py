"""A guest that lies: the other end of a connection, in real frames, which does with each request as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import paddock.backends
from paddock.backends._guest_connection import GuestConnection
from paddock.backends._guest_exec import GuestExecHandle, attach, output, start_background, start_foreground
from paddock.backends._guest_files import perform
from paddock.backends._guest_instance import GuestInstance
from paddock.backends._guest_json import _Agents as Agents  # pyright: ignore[reportPrivateUsage]
from paddock.backends._guest_ports import accept
from paddock.guest._frames import (
    MAX_REQUEST,
    VERSION,
    WINDOW,
    Decoder,
    Json,
    Kind,
    data_header,
    pack,
    pack_close,
)
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
    SandboxId,
    SetFileAttributes,
    StatFile,
    UploadTree,
    WatchFiles,
    WriteFile,
)
from tests.backends.boxes import TEMPLATE

ID = ExecId("ex_1")


class Request:
    """One that the host has made, and what may be said to it. Data goes out as the host has room, and is counted."""

    def __init__(self, peer: Peer, number: int, body: Json, fds: list[int]) -> None:
        self.peer, self.id, self.body, self.fds = peer, number, body, fds
        self.op: str = body["op"]
        self.credit = WINDOW
        self.granted, self.full = asyncio.Event(), asyncio.Event()
        self.said = 0

    async def say(self, kind: Kind, body: Json) -> None:
        await self.peer.send(pack(kind, self.id, body))

    async def answer(self, body: Json) -> None:
        await self.peer.send(pack(Kind.REPLY, self.id, body) + pack_close(self.id))

    async def pour(self, piece: bytes, *, first: bytes = b"") -> None:
        """`first`, and then `piece` for ever, as the host takes it; through the pipe, if it has given one."""
        if first:
            await self._data(first)
        while True:
            await self._data(piece)

    async def _data(self, piece: bytes) -> None:
        if self.fds:
            loop = asyncio.get_running_loop()
            await _ready(loop.add_writer, loop.remove_writer, self.fds[0])
            os.set_blocking(self.fds[0], False)
            self.said += os.write(self.fds[0], piece)
            return
        while self.credit < len(piece):
            self.granted.clear()
            self.full.set()
            await self.granted.wait()
        self.credit -= len(piece)
        await self.peer.send(data_header(self.id, 1, len(piece)) + piece)
        self.said += len(piece)


Serve = Callable[[Request], Awaitable[None]]


async def _ready(watch: Callable[..., None], unwatch: Callable[[int], bool], fd: int) -> None:
    ready = asyncio.get_running_loop().create_future()
    watch(fd, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        unwatch(fd)


class Peer:
    def __init__(self, stream: socket.socket, serve: Serve) -> None:
        stream.setblocking(False)
        self._socket, self._serve = stream, serve
        self._decoder = Decoder(MAX_REQUEST)
        self._tasks: list[asyncio.Task[None]] = []
        self._lock = asyncio.Lock()
        self.requests: dict[int, Request] = {}

    async def send(self, data: bytes) -> None:
        async with self._lock:
            await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        await self.send(pack(Kind.HELLO, 0, {"version": VERSION}))
        while True:
            await _ready(loop.add_reader, loop.remove_reader, self._socket.fileno())
            data, fds, _, _ = socket.recv_fds(self._socket, 1 << 18, 16)
            if not data:
                return
            for frame in self._decoder.feed(data):
                if frame.kind is Kind.OPEN:
                    request = self.requests[frame.channel] = Request(self, frame.channel, frame.body, fds)
                    self._tasks.append(loop.create_task(self._served(request)))
                elif frame.kind is Kind.CREDIT:
                    self.requests[frame.channel].credit += frame.credit
                    self.requests[frame.channel].granted.set()

    async def _served(self, request: Request) -> None:
        with contextlib.suppress(OSError):
            await self._serve(request)

    @property
    def said(self) -> int:
        """Bytes of data, in all."""
        return sum(request.said for request in self.requests.values())

    async def close(self) -> None:
        self._socket.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for request in self.requests.values():
            for fd in request.fds:
                os.close(fd)


@asynccontextmanager
async def lying(serve: Serve, *, descriptors: bool = False) -> AsyncGenerator[tuple[GuestConnection, Peer]]:
    """A connection to a guest that does with each request what `serve` does."""
    ours, theirs = socket.socketpair()
    connection, peer = GuestConnection(ours), Peer(theirs, serve)
    connection.descriptors = descriptors
    running = asyncio.ensure_future(peer.run())
    try:
        async with asyncio.timeout(60):
            yield connection, peer
    finally:
        connection.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await peer.close()


def instance(connection: GuestConnection) -> GuestInstance:
    async def connect(identity: str) -> GuestConnection:
        return connection

    return GuestInstance(SandboxId("sb_1"), TEMPLATE, connect, root_user=False)


async def foreground(connection: GuestConnection) -> GuestExecHandle:
    return await start_foreground(connection, ExecSpec(argv=("x",)), ID, None)


async def background(connection: GuestConnection) -> GuestExecHandle:
    return await start_background(connection, ExecSpec(argv=("x",)), ID, None)


async def terminal(connection: GuestConnection) -> GuestExecHandle:
    return await start_foreground(connection, ExecSpec(argv=("x",), pty=PtySize()), ID, None)


def file(kind: Any, **fields: Any) -> Callable[[GuestConnection], Awaitable[Any]]:
    return lambda connection: perform(connection, kind(sandbox="sb_1", **fields))


Call = Callable[[GuestConnection], Awaitable[Any]]
CALLS: dict[str, Call] = {
    "stat": file(StatFile, path="p"),
    "mkdir": file(MakeDirectory, path="p"),
    "set": file(SetFileAttributes, path="p", mode=0o600),
    "move": file(MoveFile, source="a", destination="b"),
    "move_tree": file(MoveFile, source="a", destination="b"),
    "copy": file(CopyFile, source="a", destination="b"),
    "remove": file(RemoveFile, path="p"),
    "remove_tree": file(RemoveFile, path="p", recursive=True),
    "list": file(ListFiles, path="p"),
    "find": file(FindFiles, path="p", limit=10),
    "grep": file(GrepFiles, path="p", pattern="x", limit=10),
    "read": file(ReadFile, path="p", length=1000),
    "download": file(DownloadTree, path="p"),
    "write": file(WriteFile, path="p"),
    "upload": file(UploadTree, path="p"),
    "watch": file(WatchFiles, path="p"),
    "connect": file(ConnectPort, port=80),
    "accept": lambda connection: accept(connection, "/door"),
    "exec": foreground,
    "exec in the background": background,
    "attach": lambda connection: attach(connection, ID).started(),
    "output": lambda connection: output(connection, ID, 1),
    "execs": lambda connection: instance(connection).execs(),
    "agents": lambda connection: connection.open({"op": "agents"}).call(Agents),
    "signal": lambda connection: instance(connection).signal_exec(ID, 1),
}
"""One call for each operation: what it does first. `HELD` are made on a command that runs."""

HELD: dict[str, Callable[[GuestExecHandle], Awaitable[Any]]] = {
    "kill_exec": lambda handle: handle.kill(),
    "resize": lambda handle: handle.resize(PtySize()),
}
OTHERS = {"ping", "lost"}
"""The connection's own: nobody waits for the first, and for the second never longer than ten seconds."""


def operations() -> set[str]:
    """All that the host's side ever asks, read from its source."""
    found: set[str] = set()
    for path in Path(paddock.backends.__file__).parent.glob("_guest_*.py"):
        source = path.read_text()
        found |= set(re.findall(r'"op": "(\w+)"', source))
        found |= set(re.findall(r'await _(?:call|work|lines)\(connection, "(\w+)"', source))
    return found
