"""Events of processes from the kernel, at forks, executions and ends (include/uapi/linux/cn_proc.h,
CONFIG_PROC_EVENTS).

They cover the whole machine. Only processes in its first pid namespace get them, and ordinary users since Linux 6.6.
The kernel drops events if they come too fast. It reports that (ENOBUFS) at once, before the reader has read earlier
events, and drops all until then. Without memory it drops events silently. But it numbers the events of each processor
(drivers/connector/cn_proc.c, send_msg), so a gap shows missing ones.
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
_NONE = 0xFFFF_FFFF
_BUFFER_BYTES = 4 << 20
_SO_RCVBUFFORCE = 33

ACK, FORK, EXEC, EXIT = 0, 1, 2, 0x8000_0000


class Event(NamedTuple):
    """An event.

    `words` of a fork: parent, parent's process, child, child's process.

    Of an execution: thread and process. Of an end: thread, process, exit status, signal. Of an ACK the first is an
    errno, or 0.
    """

    what: int
    nanoseconds: int
    words: tuple[int, int, int, int]


class EventsLost(Exception):
    """Some events are missing between the last and the next one."""


class EventSocket:
    """A socket for the kernel's events, after `listen`."""

    def __init__(self) -> None:
        """OSError: this kernel does not tell, or not this user."""
        self._socket = _open()
        self._numbers: dict[int, int] = {}
        self._next: Event | None = None
        self._overrun = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> EventSocket:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def listen(self, wanted: bool) -> None:
        """Begins or ends it. OSError: the kernel does not answer (another pid namespace), or refuses."""
        body = struct.pack("=I", _LISTEN if wanted else _IGNORE)
        message = _CONNECTOR.pack(_PROC, _PROC, 0, 0, len(body), 0) + body
        self._socket.send(_HEADER.pack(_HEADER.size + len(message), _DONE, 0, 0, 0) + message)
        if not wanted:
            return
        lost = False
        while True:
            try:
                event = self.read()
            except EventsLost:
                lost = True
                continue
            if event is None and not lost:
                raise OSError(errno.ENOTSUP, "the kernel does not tell of processes here", "proc connector")
            if event is not None and event.what == ACK and event.words[0]:
                raise OSError(event.words[0], os.strerror(event.words[0]), "proc connector")
            if event is None or event.what == ACK:
                break
        self._numbers.clear()  # the kernel has counted on for another listener
        self._overrun = lost  # said again, to those whom it concerns

    def read(self) -> Event | None:
        """Return the next event, or None if there is none. Raises Lost."""
        if self._next is not None:
            event, self._next = self._next, None
            return event
        data = self._receive()
        if data is None:
            if self._overrun:  # what was dropped last may have had no successor
                self._overrun = False
                raise EventsLost
            return None
        data = data.ljust(_EVENT_AT + _EVENT.size + _WORDS.size, b"\0")
        number: int = _CONNECTOR.unpack_from(data, _HEADER.size)[2]
        what, processor, nanoseconds = _EVENT.unpack_from(data, _EVENT_AT)
        event = Event(what, nanoseconds, _WORDS.unpack_from(data, _EVENT_AT + _EVENT.size))
        if processor == _NONE:  # as older kernels say that they have understood
            return event
        expected = self._numbers.get(processor, number)
        self._numbers[processor] = number + 1 & 0xFFFF_FFFF
        if number != expected:
            self._next = event
            raise EventsLost
        return event

    def _receive(self) -> bytes | None:
        while True:
            try:
                return self._socket.recv(4096)
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._overrun = True


def _open() -> socket.socket:
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
