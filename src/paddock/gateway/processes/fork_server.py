"""Processes beside the gateway. They fork before it opens anything, so their memory has no secrets.

A question, like its answer, is its length in four bytes and then its bytes.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from paddock.linux import children, confine

_LENGTH = struct.Struct("!I")
_CHUNK = 1 << 18
Work = Callable[[Iterator[bytes]], Iterator[bytes]]
"""Takes questions, and yields an answer to each."""


def fork_beside(name: str, work: Callable[[socket.socket], object]) -> tuple[socket.socket, int]:
    """Fork a process that ends with this one or with `work`, and return the socket to it and its pid.

    The caller has one thread, and nothing in its memory that the process may not see.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def be_beside() -> None:
        try:
            null = os.open("/dev/null", os.O_RDWR)
            for number in (0, 1):
                os.dup2(null, number)
            os.close(null)
            work(theirs)
        except BaseException as error:
            with suppress(OSError):
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)

    with theirs:
        return ours, children.fork(be_beside, theirs.fileno())


class ForkServer:
    """A process without privileges that forks others. Each does `work`, and ends when the gateway closes its socket.

    It reads the sockets of its children from the gateway, and no data of others.
    """

    def __init__(self, name: str, work: Work) -> None:
        self._peer, self.pid = fork_beside(name, partial(_fork_each, work))
        self._peer.setblocking(False)

    def start(self) -> socket.socket:
        """Start a process, and return the socket for `ask`. Raises OSError if the server has died or is too slow."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs:
                socket.send_fds(self._peer, [b"\0"], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        return ours

    def close(self) -> None:
        """End the server. Idempotent."""
        if self._peer.fileno() >= 0:
            self._peer.close()
            os.waitpid(self.pid, 0)


async def ask(child: socket.socket, question: bytes, most: int) -> bytearray:
    """Return the answer of a process.

    Raise EOFError if the process has ended instead, and ValueError if the answer has more than `most` bytes.
    """
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_sendall(child, _LENGTH.pack(len(question)))
        await loop.sock_sendall(child, question)
        (size,) = _LENGTH.unpack(await _read(child, _LENGTH.size))
        if size > most:
            raise ValueError(f"it answers with more than {most >> 20} MiB")
        return await _read(child, size)
    except (BrokenPipeError, ConnectionResetError):
        raise EOFError from None


async def _read(child: socket.socket, size: int) -> bytearray:
    data = bytearray()
    while len(data) < size:
        if not (piece := await asyncio.get_running_loop().sock_recv(child, min(_CHUNK, size - len(data)))):
            raise EOFError
        data += piece
    return data


def _fork_each(work: Work, peer: socket.socket) -> None:
    confine.give_up_powers()
    children.serve(peer, partial(_begin, work))


def _begin(work: Work, _message: bytes, fds: list[int]) -> children.Child:
    sock = socket.socket(fileno=fds[0])
    return children.Child(os.pidfd_open(children.fork(partial(_answer, work, sock), fds[0])), sock)


def _answer(work: Work, sock: socket.socket) -> None:
    with suppress(OSError):  # the gateway has gone
        for answer in work(_questions(sock)):
            sock.sendall(_LENGTH.pack(len(answer)) + answer)


def _questions(sock: socket.socket) -> Iterator[bytes]:
    messages = sock.makefile("rb")
    while len(head := messages.read(_LENGTH.size)) == _LENGTH.size:
        yield messages.read(_LENGTH.unpack(head)[0])
