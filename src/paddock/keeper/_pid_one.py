"""What the keeper tells pid 1 of a sandbox, which holds its deadline too."""

from __future__ import annotations

import socket

from paddock.guest._frames import VERSION, Kind, pack

_HELLO = pack(Kind.HELLO, 0, {"version": VERSION})


def send_deadline(directory: int, id: str, deadline: float) -> None:
    """Pid 1 reads it when it runs next, also if this keeper is dead by then. OSError: it is dead itself.

    `directory` is the one of all sandboxes' sockets.
    """
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    with stream:
        stream.connect(f"/proc/self/fd/{directory}/{id}/init.sock")
        stream.sendall(_HELLO + pack(Kind.OPEN, 1, {"op": "deadline", "boottime": deadline}))
