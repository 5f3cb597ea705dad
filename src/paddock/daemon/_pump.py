"""Bytes between a handle of the service and a descriptor in a client's hands."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Awaitable, Callable

_CHUNK = 1 << 18
_PIPE_BYTES = 1 << 20


def pipe() -> tuple[int, int]:
    """Ends to read and to write, with as much room as this user may still have (pipe(7))."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # /proc/sys/fs/pipe-user-pages-soft: the usual 64 KiB do as well
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return reading, writing


async def writable(descriptor: int) -> None:
    await _ready(descriptor, asyncio.get_running_loop().add_writer, asyncio.get_running_loop().remove_writer)


async def readable(descriptor: int) -> None:
    await _ready(descriptor, asyncio.get_running_loop().add_reader, asyncio.get_running_loop().remove_reader)


async def _ready(descriptor: int, add: Callable[..., object], remove: Callable[[int], object]) -> None:
    ready = asyncio.get_running_loop().create_future()
    add(descriptor, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        remove(descriptor)


async def drain(read: Callable[[int], Awaitable[bytes]], descriptor: int) -> None:
    """What `read` gives, into `descriptor`, to its end. BrokenPipeError when the client has closed its end."""
    while data := await read(_CHUNK):
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:
                await writable(descriptor)


class Intake:
    """What a client writes into `descriptor`, to `write`. It counts, so that an end can be told apart from a pause."""

    def __init__(self, descriptor: int, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._descriptor, self._write = descriptor, write
        self._moved = asyncio.Condition()
        self.total = 0
        self._over = False

    async def run(self) -> None:
        try:
            while data := await self._read():
                await self._write(data)
                async with self._moved:
                    self.total += len(data)
                    self._moved.notify_all()
        finally:
            self._over = True
            async with self._moved:
                self._moved.notify_all()

    async def arrived(self, total: int) -> None:
        """Returns when so many bytes have been written on, or no more will be."""
        async with self._moved:
            await self._moved.wait_for(lambda: self._over or self.total >= total)

    async def _read(self) -> bytes:
        while True:
            try:
                return os.read(self._descriptor, _CHUNK)
            except BlockingIOError:
                await readable(self._descriptor)
            except ConnectionResetError:
                return b""
