"""The host's ends of the pipes of an exec. The other ends were handed in; these two never leave the host."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import termios
from struct import unpack

_GROWN = 1024 * 1024
_MUCH = 256 * 1024
_TURN = 64


class PipeReader:
    """`finish` ends the stream at what the pipe holds at that moment, whoever else still has its other side.

    Owns the descriptor: it is closed at the end of the stream, by `close`, or when nobody holds the reader any more.
    """

    _fd = -1

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._left: int | None = None
        self._total = 0
        self._reads = 0

    async def read(self, size: int = 65536) -> bytes:
        while self._fd >= 0:
            if self._left is not None:
                size = min(size, self._left)
            try:
                data = os.read(self._fd, size)
            except BlockingIOError:
                if self._left is not None:
                    self.close()  # what it held at the end somebody inside has taken back out
                    break
                await self._readable()
                continue
            self._count(len(data))
            if not data:
                if size:
                    self.close()
                break
            self._reads += 1
            if self._reads % _TURN == 0:
                await asyncio.sleep(0)  # a quick writer must not keep everybody else waiting
            return data
        return b""

    def _count(self, size: int) -> None:
        if self._left is not None:
            self._left -= size
            if not self._left:
                self.close()
                return
        if self._total < _MUCH <= self._total + size:
            with contextlib.suppress(OSError):  # EPERM: the user's pipes hold too much already
                fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _GROWN)
        self._total += size

    async def _readable(self) -> None:
        self._waiter = self._loop.create_future()
        self._loop.add_reader(self._fd, self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if self._fd >= 0:
                self._loop.remove_reader(self._fd)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def finish(self) -> None:
        if self._fd >= 0 and self._left is None:
            (self._left,) = unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, b"\0\0\0\0"))
            if self._left:
                self._wake()
            else:
                self.close()

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._wake()

    def __del__(self) -> None:
        # Nobody waits for it, or it would be referenced: the loop knows nothing of it.
        if self._fd >= 0:
            os.close(self._fd)

    async def aclose(self) -> None:
        self.close()


class PipeWriter:
    _fd = -1

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._writes = 0
        self._total = 0

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        if self._fd >= 0 and self._total < _MUCH <= self._total + len(view):
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _GROWN)
        self._total += len(view)
        while view:
            if self._fd < 0:
                raise BrokenPipeError("the stream is closed")
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                await self._writable()
        self._writes += 1
        if self._writes % _TURN == 0:
            await asyncio.sleep(0)

    async def _writable(self) -> None:
        self._waiter = self._loop.create_future()
        self._loop.add_writer(self._fd, self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if self._fd >= 0:
                self._loop.remove_writer(self._fd)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._wake()

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    async def aclose(self) -> None:
        self.close()

    async def abort(self) -> None:
        """What was sent has been read, perhaps: there is nothing to take back."""
        self.close()
