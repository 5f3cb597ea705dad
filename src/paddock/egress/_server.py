"""The gateway's side of its control socket: orders of services become doors of the plane."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import struct
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from paddock.errors import InvalidArgument, InvalidState, NotFound, PaddockError
from paddock.linux import local_sockets

from ._channel import Channel
from ._control import VERSION, Answer, Claim, Claimed, Close, Hello, Message, Open, Record, Revise, Secret

IDLE_SECONDS = 10.0
LOOK_SECONDS = 1.0
CLAIM_SECONDS = 30.0
NO_ANSWER = Claimed(n=0, state="denied", reason="no service of paddock is there that could ask a person")
_CREDENTIALS = struct.Struct("=3i")


class Plane(Protocol):
    """What lets through or refuses. The sockets are its own; every method may raise PaddockError."""

    async def open(self, order: Open, sockets: Sequence[socket.socket]) -> None:
        """Returns when what comes in there is served."""
        ...

    async def revise(self, order: Open | Revise) -> None:
        """Returns when the revision holds for the connections that live, too."""
        ...

    async def secret(self, order: Secret) -> None: ...

    async def record(self, order: Record) -> bytes:
        """What was recorded, if it ends with this."""
        ...

    async def close(self, sandbox: str) -> None:
        """Cuts everything, and closes the sockets."""
        ...


class _Turn:
    def __init__(self) -> None:
        self.lock, self.wanted = asyncio.Lock(), 0


class Server:
    """Serves until it has had no door for a while. `lives(sandbox, incarnation)` says whether there is still such a
    sandbox: a service may die before it says that one has ended."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        owner: int,
        lives: Callable[[str, int], bool],
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        listener.setblocking(False)
        self._listener, self._owner, self._lives, self._idle = listener, owner, lives, idle_seconds
        self._doors: dict[str, int] = {}
        self._certificates: dict[str, bytes] = {}
        self._channels: dict[Channel, None] = {}
        self._orders: set[asyncio.Task[None]] = set()
        self._turns: dict[str, _Turn] = {}
        self._claims: dict[int, tuple[asyncio.Future[Claimed], Channel]] = {}
        self._numbers = itertools.count(1)

    async def serve(self, plane: Plane) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._listener.fileno(), self._accept, plane)
        since = loop.time()
        try:
            while loop.time() - since < self._idle:
                await asyncio.sleep(min(LOOK_SECONDS, self._idle))
                for sandbox, incarnation in list(self._doors.items()):
                    if not self._lives(sandbox, incarnation):
                        await self._close(plane, sandbox, incarnation)
                if self._doors or self._orders:
                    since = loop.time()
        finally:
            loop.remove_reader(self._listener.fileno())
            for channel in list(self._channels):
                channel.close()
            for sandbox, incarnation in list(self._doors.items()):
                await self._close(plane, sandbox, incarnation)

    async def claim(self, request: Claim) -> Claimed:
        """Asks one service after another until one knows the sandbox: a yes is used up by being given. None: a no."""
        for channel in list(self._channels):
            number = next(self._numbers)
            future: asyncio.Future[Claimed] = asyncio.get_running_loop().create_future()
            self._claims[number] = (future, channel)
            try:
                channel.send(msgspec.structs.replace(request, n=number))
                async with asyncio.timeout(CLAIM_SECONDS):
                    answer = await future
                if answer.state != "unknown":
                    return answer
            except (ConnectionError, TimeoutError):
                continue
            finally:
                del self._claims[number]
        return NO_ANSWER

    # -- services

    def _accept(self, plane: Plane) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        _, uid, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if uid != self._owner:
            peer.close()
            return

        def heard(message: Message, fds: list[int]) -> None:
            self._heard(plane, channel, message, fds)

        channel = Channel(peer, heard, lambda: self._left(channel))
        self._channels[channel] = None

    def _left(self, channel: Channel) -> None:
        self._channels.pop(channel, None)
        for future, asked in self._claims.values():
            if asked is channel and not future.done():
                future.set_exception(ConnectionError("the service has gone"))

    def _heard(self, plane: Plane, channel: Channel, message: Message, fds: list[int]) -> None:
        sockets = [socket.socket(fileno=fd) for fd in fds]
        if isinstance(message, Claimed):
            self._claimed(channel, message)
            return
        order = asyncio.ensure_future(self._obey(plane, channel, message, sockets))
        self._orders.add(order)
        order.add_done_callback(self._orders.discard)

    def _claimed(self, channel: Channel, answer: Claimed) -> None:
        future, asked = self._claims.get(answer.n, (None, None))
        if future is not None and asked is channel and not future.done():
            future.set_result(answer)

    async def _obey(self, plane: Plane, channel: Channel, message: Message, sockets: list[socket.socket]) -> None:
        answer = Answer(n=message.n, pid=os.getpid())
        try:
            recording = await self._do(plane, message, sockets)
            if recording:
                answer = Answer(n=message.n, recording=recording)
            if isinstance(message, Hello):
                answer = Answer(n=message.n, pid=os.getpid(), doors=dict(self._doors))
            if isinstance(message, Open):  # perhaps that of another service, who was quicker
                answer = Answer(n=message.n, certificate=self._certificates.get(message.sandbox, b""))
        except PaddockError as error:
            answer = Answer(n=message.n, error=error.message, kind=error.code)
        except Exception as error:  # a fault in one matter must not leave all the others without a gateway
            answer = Answer(n=message.n, error=f"{type(error).__name__}: {error}", kind="internal")
        finally:
            for one in sockets:  # those that the plane did not take
                one.close()
        if not channel.closed:
            channel.send(answer)

    async def _do(self, plane: Plane, message: Message, sockets: list[socket.socket]) -> bytes:
        match message:
            case Record():
                self._known(message.sandbox, message.incarnation)
                return await plane.record(message)
            case Hello(version=version):
                if version != VERSION:
                    raise InvalidState(f"this gateway speaks version {VERSION}, not {version}")
            case Open():
                async with self._turn(message.sandbox):
                    await self._open(plane, message, sockets)
            case Revise():
                async with self._turn(message.sandbox):
                    self._known(message.sandbox, message.incarnation)
                    await plane.revise(message)
            case Secret():
                async with self._turn(message.sandbox):  # one that is being opened has been given the one before
                    if message.sandbox in self._doors:
                        await plane.secret(message)
            case Close():
                await self._close(plane, message.sandbox, message.incarnation)
            case _:
                raise InvalidArgument("no such operation")
        return b""

    async def _open(self, plane: Plane, order: Open, sockets: list[socket.socket]) -> None:
        if self._doors.get(order.sandbox) == order.incarnation:
            await plane.revise(order)
            return
        if order.sandbox in self._doors:  # of the one before, under the same id
            await self._drop(plane, order.sandbox)
        if len(sockets) < 4:
            raise InvalidState(f"nobody has the sockets of {order.sandbox} any more: its way out is closed for good")
        await plane.open(order, tuple(sockets))
        sockets.clear()
        self._doors[order.sandbox], self._certificates[order.sandbox] = order.incarnation, order.certificate

    async def _close(self, plane: Plane, sandbox: str, incarnation: int) -> None:
        async with self._turn(sandbox):
            if self._doors.get(sandbox) == incarnation:
                await self._drop(plane, sandbox)

    async def _drop(self, plane: Plane, sandbox: str) -> None:
        del self._doors[sandbox]
        self._certificates.pop(sandbox, None)
        await plane.close(sandbox)

    @contextlib.asynccontextmanager
    async def _turn(self, sandbox: str) -> AsyncGenerator[None]:
        """Of the orders for one sandbox, which are obeyed one after the other. It goes when nobody wants it any more: a
        lock that is free may have been given to one that waited, who has not come to it yet."""
        turn = self._turns.setdefault(sandbox, _Turn())
        turn.wanted += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.wanted -= 1
            if not turn.wanted:
                del self._turns[sandbox]

    def _known(self, sandbox: str, incarnation: int) -> None:
        if self._doors.get(sandbox) != incarnation:
            raise NotFound(f"the gateway has no door of {sandbox} in incarnation {incarnation}")


def listen(state: Path, name: str) -> socket.socket:
    """The control socket; whatever an earlier gateway left at its place is taken away. The caller holds the lock."""
    with local_sockets.reached(state) as short:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{short}/{name}")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(f"{short}/{name}")
            listener.listen(64)
        except BaseException:
            listener.close()
            raise
    return listener
