"""News of processes from the kernel, as they fork, execute and end (include/uapi/linux/cn_proc.h, CONFIG_PROC_EVENTS).

Of the whole machine, and only to those in its first pid namespace; to ordinary users since Linux 6.6. What is too fast
is dropped by the kernel, which says so (ENOBUFS).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import NamedTuple

_NETLINK_CONNECTOR, _PROC, _DONE = 11, 1, 3
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_CONNECTOR = struct.Struct("=IIIIHH")  # struct cn_msg: idx, val, seq, ack, len, flags
_EVENT = struct.Struct("=IIQ")  # struct proc_event begins with: what, cpu, nanoseconds since boot
_EVENT_AT = _HEADER.size + _CONNECTOR.size
_WORDS = struct.Struct("=IIII")
_LISTEN, _IGNORE = 1, 2
_BUFFER_BYTES = 4 << 20
_SO_RCVBUFFORCE = 33

ACK, FORK, EXEC, EXIT = 0, 1, 2, 0x8000_0000


class Event(NamedTuple):
    """`words` are of a fork parent, parent's process, child, child's process; of an execution thread and process; of an
    end thread, process, exit status, signal. Of an ACK the first is an errno, or 0."""

    what: int
    nanoseconds: int
    words: tuple[int, int, int, int]


class Lost(Exception):
    """Some were dropped."""


def open_events() -> socket.socket:
    """Says nothing before `listen`. OSError: this kernel does not tell, or not this user."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_CONNECTOR)
    try:
        sock.setblocking(False)
        try:
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        sock.bind((0, _PROC))
    except BaseException:
        sock.close()
        raise
    return sock


def listen(sock: socket.socket, wanted: bool) -> None:
    """Begins or ends it. OSError: the kernel does not answer (another pid namespace), or refuses."""
    body = struct.pack("=I", _LISTEN if wanted else _IGNORE)
    message = _CONNECTOR.pack(_PROC, _PROC, 0, 0, len(body), 0) + body
    sock.send(_HEADER.pack(_HEADER.size + len(message), _DONE, 0, 0, 0) + message)
    if not wanted:
        return
    while True:
        try:
            event = read(sock)
        except Lost:
            return
        if event is None:
            raise OSError(errno.ENOTSUP, "the kernel does not tell of processes here", "proc connector")
        if event.what == ACK:
            if event.words[0]:
                raise OSError(event.words[0], os.strerror(event.words[0]), "proc connector")
            return


def read(sock: socket.socket) -> Event | None:
    """None: there is none. Lost."""
    try:
        data = sock.recv(4096)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno == errno.ENOBUFS:
            raise Lost from None
        raise
    data = data.ljust(_EVENT_AT + _EVENT.size + _WORDS.size, b"\0")
    what, _, nanoseconds = _EVENT.unpack_from(data, _EVENT_AT)
    return Event(what, nanoseconds, _WORDS.unpack_from(data, _EVENT_AT + _EVENT.size))
