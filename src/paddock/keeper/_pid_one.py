"""What the keeper tells pid 1 of a sandbox, which holds its deadline too."""

from __future__ import annotations

import socket
from struct import Struct

from paddock.keeper._orders import nanoseconds
from paddock.wire.guest import VERSION, Deadline, HostHello, Kind, Op

_HEADER = Struct("<IHHIBBH")


def _frame(kind: Kind, channel: int, body: bytes, code: int = 0) -> bytes:
    return _HEADER.pack(len(body), kind, code, channel, 0, 0, 0) + body


_HELLO = _frame(Kind.HELLO, 0, HostHello(version=VERSION).pack())


def send_deadline(directory: int, id: str, deadline: float) -> None:
    """Pid 1 reads it when it runs next, also if this keeper is dead by then. OSError: it is dead itself.

    `directory` is the one of all sandboxes' sockets.
    """
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    with stream:
        stream.connect(f"/proc/self/fd/{directory}/{id}/init.sock")
        stream.sendall(_HELLO + _frame(Kind.OPEN, 1, Deadline(deadline=nanoseconds(deadline)).pack(), Op.DEADLINE))
