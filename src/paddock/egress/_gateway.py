"""The gateway's data plane: doors, opened and revised and closed, and what comes through them."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine
from typing import Any

from paddock.model import Recording
from paddock.policy.egress import Snapshot

from ._connection import Connection
from ._dns import MAX_QUERY_BYTES, Frames, answer, frame
from ._handler import HandlerHost
from ._open_door import Door, Limits, OpenDoor, Pages
from ._origins import Origins
from ._secret_book import Bound
from ._upstream import Dialer, Reach, Resolver, over_tcp, resolve_here, system_trust
from ._wire import SCRATCH_BYTES, Lost, Wire

_TICK_SECONDS = 0.5
_ACCEPT_AT_ONCE = 64
_PAUSE_SECONDS = 0.1
PATIENCE_SECONDS = 2.0
_OUT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

Origin = Callable[[socket.socket], tuple[str, int]]
"""Where an accepted connection wanted to go. OSError."""


_SO_ORIGINAL_DST = 80  # linux/netfilter_ipv4.h; the same number for IPv6, at its own level


def original_destination(sock: socket.socket) -> tuple[str, int]:
    """Of an accepted connection. OSError: it was not redirected."""
    if sock.family == socket.AF_INET:
        name = sock.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)
        return socket.inet_ntop(socket.AF_INET, name[4:8]), int.from_bytes(name[2:4], "big")
    name = sock.getsockopt(socket.IPPROTO_IPV6, _SO_ORIGINAL_DST, 28)
    return socket.inet_ntop(socket.AF_INET6, name[8:24]), int.from_bytes(name[2:4], "big")


class Gateway:
    """Used within one event loop. `close` ends everything that it began."""

    def __init__(
        self,
        *,
        resolver: Resolver = resolve_here,
        trust: Callable[[], ssl.SSLContext] = system_trust,
        reach: Reach = over_tcp,
        origin: Origin = original_destination,
        limits: Limits | None = None,
        pages: Pages | None = None,
        handlers: HandlerHost | None = None,
        origins: Origins | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._dialer = Dialer(self._loop, self._scratch, resolver, trust, reach)
        self._origin, self._limits, self._origins = origin, limits or Limits(), origins
        self._pages, self._handlers = pages, handlers
        self._doors: dict[str, OpenDoor] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticker: asyncio.TimerHandle | None = None

    @property
    def doors(self) -> int:
        return len(self._doors)

    async def open(self, door: Door) -> None:
        """From now on it is answered. One that is open for the sandbox already is closed."""
        await self.close(door.sandbox)
        opened = OpenDoor(door, self._dialer, self._limits, self._loop, self._handlers, self._pages)
        self._doors[door.sandbox] = opened
        for listener in door.tcp:
            self._listen(opened, listener, self._serve)
        self._listen(opened, door.dns_tcp, self._serve_names)
        door.dns_udp.setblocking(False)
        self._loop.add_reader(door.dns_udp, self._answer_names, opened)
        if self._ticker is None:
            self._tick()

    async def revise(self, sandbox: str, policy: Snapshot) -> None:
        """When it returns, what `policy` refuses was cut. KeyError: no such door."""
        self._doors[sandbox].revise(policy)

    async def watch(self, sandbox: str, wanted: bool) -> None:
        """Whether processes of it are told of, from when this returns. KeyError: no such door."""
        await self._watch(self._doors[sandbox], wanted)

    async def _watch(self, opened: OpenDoor, wanted: bool) -> None:
        door = opened.door
        if self._origins is not None and wanted != opened.watched:
            opened.watched = wanted
            await self._origins.watch(door.sandbox, door.incarnation, door.first if wanted else None)

    def put_secret(self, sandbox: str, bound: Bound) -> None:
        """Another value of a secret, or that it is revoked. KeyError: no such door."""
        self._doors[sandbox].door.secrets.put(bound)

    def record(self, sandbox: str, on: bool) -> Recording | None:
        """See `OpenDoor.record`. KeyError: no such door."""
        return self._doors[sandbox].record(on)

    async def close(self, sandbox: str) -> None:
        """Its connections are cut and its sockets closed. Idempotent."""
        opened = self._doors.pop(sandbox, None)
        if opened is None:
            return
        door = opened.door
        for sock in (*door.tcp, door.dns_tcp, door.dns_udp):
            self._loop.remove_reader(sock)
            sock.close()
        if door.diag is not None:
            door.diag.close()
        opened.shut("closed")
        await self._watch(opened, False)

    async def close_all(self) -> None:
        for sandbox in list(self._doors):
            await self.close(sandbox)
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._origins is not None:
            self._origins.close()

    # -- connections ---------------------------------------------------------------------------------------------------

    def _listen(self, door: OpenDoor, listener: socket.socket, serve: _Serve) -> None:
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept, door, listener, serve)

    def _accept(self, door: OpenDoor, listener: socket.socket, serve: _Serve) -> None:
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in _OUT:  # they wait in the backlog until something is closed
                    self._loop.remove_reader(listener)
                    self._loop.call_later(_PAUSE_SECONDS, self._again, door, listener, serve)
                return
            sock.setblocking(False)
            if len(door.live) >= door.limits.connections:
                door.refused += 1
                _reset(sock)
                continue
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection = Connection(door, Wire(self._loop, self._scratch), self._where(listener, door, sock))
            except OSError:
                _reset(sock)
                continue
            door.live.add(connection)
            self._start(serve(door, connection, sock))

    def _where(self, listener: socket.socket, door: OpenDoor, sock: socket.socket) -> tuple[str, int]:
        return ("", 53) if listener is door.door.dns_tcp else self._origin(sock)

    def _again(self, door: OpenDoor, listener: socket.socket, serve: _Serve) -> None:
        if self._doors.get(door.door.sandbox) is door:
            self._listen(door, listener, serve)

    async def _serve(self, door: OpenDoor, connection: Connection, sock: socket.socket) -> None:
        try:
            await connection.wire.attach(sock)
            await self._ask_who(door, connection, sock)
            await connection.run()
        finally:
            door.live.discard(connection)
            door.origins.pop(connection.flow, None)

    async def _ask_who(self, opened: OpenDoor, connection: Connection, sock: socket.socket) -> None:
        """Begin to ask who made the connection. Return when that is known, or has taken long.

        A program that waits for an answer is still there when it is looked for: it gets none before this returns.
        """
        door = opened.door
        if door.diag is not None and self._origins is not None:
            asking = self._origins.who(door.diag, sock, connection.origin, door.sandbox, door.first)
            opened.origins[connection.flow] = task = self._loop.create_task(asking)
            await asyncio.wait([task], timeout=PATIENCE_SECONDS)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # ours: the connection was ended all the same
            self._loop.call_exception_handler({"message": "a connection failed", "exception": error, "task": task})

    def _tick(self) -> None:
        now = self._loop.time()
        for door in list(self._doors.values()):
            door.tick(now)
        self._ticker = self._loop.call_later(_TICK_SECONDS, self._tick)

    # -- names ---------------------------------------------------------------------------------------------------------

    def _answer_names(self, door: OpenDoor) -> None:
        udp = door.door.dns_udp
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                query, client = udp.recvfrom(MAX_QUERY_BYTES)
                reply = answer(query, door.lookup, udp=True)
                if reply is not None:
                    udp.sendto(reply, client)
            except BlockingIOError:
                return
            except OSError:
                continue  # of one client: it has gone

    async def _serve_names(self, door: OpenDoor, connection: Connection, sock: socket.socket) -> None:
        wire, frames = connection.wire, Frames()
        connection.limit(door.limits.first_byte)
        try:
            await wire.attach(sock)
            while await wire.more():
                for query in frames.feed(bytes(wire.buffer)):
                    reply = answer(query, door.lookup, udp=False)
                    if reply is None:
                        return
                    wire.write(frame(reply))
                wire.buffer.clear()
                await wire.drain()
        except (ValueError, Lost):
            wire.reset()
        finally:
            wire.close()
            door.live.discard(connection)


_Serve = Callable[[OpenDoor, Connection, socket.socket], Coroutine[Any, Any, None]]


def _reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
