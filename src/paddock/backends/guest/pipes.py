"""Read and write the host's ends of a command's pipes. The guest gets the other ends, and never these two."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

from paddock.backends.pump import Flow, Journal, grow, held
from paddock.linux.descriptors import write_all

_TURN = 64
_FEED = 1 << 20


def open_pipe() -> tuple[int, int]:
    """Make a pipe whose ends a command may open anew, as `/dev/stdin` and `/dev/stderr` do.

    The pipe belongs to this process's user, whom a sandbox's user namespace may not map. There not even root inside
    may open it while its mode is 0600. Only processes that see a holder's /proc/PID/fd reach it by path.
    """
    ends = os.pipe2(os.O_CLOEXEC)
    os.fchmod(ends[0], 0o666)  # both ends are one inode
    return ends


class _Pipe:
    """Own one non-blocking end. `close`, or its last reference, closes it."""

    _fd = -1

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._total = 0
        self._turns = 0
        self._flow: Flow | None = None
        """The pump moves it, and closes it afterwards."""

    @property
    def closed(self) -> bool:
        return self._fd < 0

    async def _ready(self, watch: Callable[[int, Callable[[], None]], None], unwatch: Callable[[int], bool]) -> None:
        """Wait until the pipe has data, or room, or was closed."""
        self._waiter = self._loop.create_future()
        watch(self._fd, self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if self._fd >= 0:
                unwatch(self._fd)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _count(self, size: int) -> None:
        grow(self._total, size, self._fd)
        self._total += size

    async def _give_way(self) -> None:
        """Yield to other tasks: a quick stream must not starve them."""
        self._turns += 1
        if self._turns % _TURN == 0:
            await asyncio.sleep(0)

    def close(self) -> None:
        if self._flow is not None:
            self._flow.stop()
        elif self._fd >= 0:
            if self._waiter is not None:
                self._loop.remove_reader(self._fd)
                self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._wake()

    def __del__(self) -> None:
        # No task waits for it, or it would be referenced: the loop doesn't watch it.
        if self._fd >= 0:
            os.close(self._fd)

    async def aclose(self) -> None:
        self.close()


class PipeReader(_Pipe):
    """Read a pipe to the end of the stream. `finish` ends it at what the pipe holds now, even if another process has
    its other side."""

    _left: int | None = None
    journal: Journal | None = None
    """It writes all bytes that it reads there, if set. Set it before reading."""

    @property
    def is_cut(self) -> bool:
        """Whether the command has ended. Reads return what the pipe holds and don't wait."""
        return self._fd < 0 or self._left is not None

    def kept(self) -> tuple[int, ...]:
        """Return the descriptors with which another daemon continues."""
        assert self.journal is not None
        return self._fd, self.journal.file

    async def read(self, size: int = 65536) -> bytes:
        if self.journal is not None and self.journal.unread:
            return self.journal.read(self._fd, size)
        while self._fd >= 0:
            if self._left is not None:
                size = min(size, self._left)
            try:
                data = os.read(self._fd, size) if self.journal is None else self.journal.read(self._fd, size)
            except BlockingIOError:
                if self._left:
                    # A program inside has read the bytes that were left when the command ended: an ordinary user's
                    # sandbox has this user's uid, and may open the pipe anew. No byte can come.
                    super().close()
                    break
                await self._ready(self._loop.add_reader, self._loop.remove_reader)
                continue
            self._count(len(data))
            if self._left is not None:
                self._left -= len(data)
            if self._left == 0 or (size and not data):
                super().close()
            if not data:
                break
            await self._give_way()
            return data
        return b""

    def close(self) -> None:
        if self._flow is None and self.journal is not None:
            self.journal.close()
        super().close()

    async def pour(self, flow: Flow) -> None:
        if self._fd < 0:
            return
        self._flow, flow.journal = flow, self.journal
        try:
            if self._left is not None:
                flow.ends_at = self._left + (0 if self.journal is None else self.journal.unread)
            await flow.pour(self._fd)
        finally:
            self._flow = None
            self.close()

    def finish(self) -> None:
        if self._flow is not None:
            self._flow.cut()
        elif self._fd >= 0 and self._left is None:
            self._left = held(self._fd)
            if self._left or (self.journal is not None and self.journal.unread):
                self._wake()
            else:
                super().close()


class PipeWriter(_Pipe):
    after_close: Callable[[], Awaitable[None]] | None = None
    """Closes its other copies: the reader sees no end before."""

    def __init__(self, fd: int, file: int = -1) -> None:
        super().__init__(fd)
        self._file = file
        """What `feed` has left to write, from its position on."""

    async def kept(self) -> tuple[int, ...]:
        """Return the descriptors with which another daemon continues."""
        return () if self._fd < 0 else tuple(fd for fd in (self._fd, self._file) if fd >= 0)

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        if self._fd >= 0:
            self._count(len(view))
        while view:
            if self._fd < 0:
                raise BrokenPipeError("the stream is closed")
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                await self._ready(self._loop.add_writer, self._loop.remove_writer)
        await self._give_way()

    async def feed(self, data: bytes) -> None:
        """Write `data`, or what an earlier daemon has left of it; then close. splice(2) moves the file's position with
        the bytes."""
        if self._file < 0:
            self._file = _file_of(data)
        try:
            while self._fd >= 0:
                try:
                    if not os.splice(self._file, self._fd, _FEED, flags=os.SPLICE_F_NONBLOCK):
                        break
                except BlockingIOError:
                    await self._ready(self._loop.add_writer, self._loop.remove_writer)
        except BrokenPipeError:
            await self.aclose()
            raise
        finally:
            self.close()
        await self.aclose()

    async def draw(self, flow: Flow) -> None:
        """Like `write` of all that comes, and open after it."""
        if self._fd < 0:
            raise BrokenPipeError("the stream is closed")
        self._flow, flow.is_exact = flow, True
        try:
            await flow.draw(self._fd)
        finally:
            self._flow = None
            if flow.stopped:
                self.close()
        if self._fd < 0:
            raise BrokenPipeError("the stream is closed")

    def close(self) -> None:
        super().close()
        self._close_file()

    def __del__(self) -> None:
        super().__del__()
        self._close_file()

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    async def aclose(self) -> None:
        self.close()
        if self.after_close is not None:
            await self.after_close()

    async def abort(self) -> None:
        """Do nothing: the command may have read it, so it can't be taken back."""
        await self.aclose()


def _file_of(data: bytes) -> int:
    """Return a file in memory that holds `data`, at its start."""
    file = os.memfd_create("paddock-input", os.MFD_CLOEXEC)
    try:
        write_all(file, data)
        os.lseek(file, 0, os.SEEK_SET)
    except BaseException:
        os.close(file)
        raise
    return file
