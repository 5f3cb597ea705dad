"""Bytes between a file and a pipe of the host's, moved by the kernel in pieces: they never come into this process."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from ._loop import IN, OUT, Loop

_PIECE = 512 * 1024
_NO_SPLICE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


class Outflow:
    """File to pipe, then `finished(error)`. Owns both. A reader that has gone is an end like any other."""

    def __init__(
        self, loop: Loop, file: int, pipe: int, limit: int | None, finished: Callable[[OSError | None], None]
    ) -> None:
        os.set_blocking(pipe, False)
        self._loop = loop
        self._file = file
        self._pipe = pipe
        self._limit = limit
        self._finished = finished
        self._spliceable = True
        self.done = False
        self._loop.soon(self._flow)

    def _flow(self, events: int = 0) -> None:
        if self.done:
            return
        try:
            # One piece a round: others want to be served too.
            moved = self._move(_PIECE if self._limit is None else min(_PIECE, self._limit))
        except BlockingIOError:
            self._loop.watch(self._pipe, OUT, self._flow)
            return
        except BrokenPipeError:
            self._end(None)
            return
        except OSError as error:
            self._end(error)
            return
        if self._limit is not None:
            self._limit -= moved
        if moved and self._limit != 0:
            self._loop.watch(self._pipe, OUT, self._flow)
        else:
            self._end(None)

    def _move(self, size: int) -> int:
        if self._spliceable and size:
            try:
                return os.sendfile(self._pipe, self._file, None, size)  # pyright: ignore[reportArgumentType]
            except OSError as error:
                if error.errno not in _NO_SPLICE:
                    raise
                self._spliceable = False  # /proc and its like
        # What the pipe does not take must not be lost: read at a position, and move on by what was written.
        position = os.lseek(self._file, 0, os.SEEK_CUR)
        written = os.write(self._pipe, os.pread(self._file, min(size, 65536), position))
        os.lseek(self._file, written, os.SEEK_CUR)
        return written

    def _end(self, error: OSError | None) -> None:
        self.close()
        self._finished(error)

    def close(self) -> None:
        if not self.done:
            self.done = True
            self._loop.unwatch(self._pipe)
            os.close(self._pipe)
            os.close(self._file)


class Inflow:
    """Pipe to file, until nobody writes any more, then `finished(error)`. Owns the pipe."""

    def __init__(self, loop: Loop, pipe: int, file: int, finished: Callable[[OSError | None], None]) -> None:
        os.set_blocking(pipe, False)
        self._loop = loop
        self._pipe = pipe
        self._file = file
        self._finished = finished
        self._spliceable = True
        self.done = False
        loop.watch(pipe, IN, self._flow)

    def _flow(self, events: int) -> None:
        try:
            if not self._move():
                self._end(None)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error)

    def _move(self) -> int:
        if self._spliceable:
            try:
                return os.splice(self._pipe, self._file, _PIECE, flags=_SPLICE_F_NONBLOCK)
            except OSError as error:
                if error.errno not in _NO_SPLICE:
                    raise
                self._spliceable = False  # a file opened to append, or a file system that cannot
        view = memoryview(os.read(self._pipe, _PIECE))
        size = len(view)
        while view:
            view = view[os.write(self._file, view) :]
        return size

    def _end(self, error: OSError | None) -> None:
        self.close()
        self._finished(error)

    def close(self) -> None:
        if not self.done:
            self.done = True
            self._loop.unwatch(self._pipe)
            os.close(self._pipe)


_SPLICE_F_NONBLOCK: int = getattr(os, "SPLICE_F_NONBLOCK", 2)
