"""In a virtual machine: where its host's calls arrive, each port for one line (`_ferry`)."""

from __future__ import annotations

import socket

from ._ferry import Ferry
from ._loop import IN, Loop

_BACKLOG = 4


class Quay:
    """`line` is the end that the line's own side has: any number of processes may hold it, one after the other."""

    def __init__(self, port: int) -> None:
        self._listener = _listen(port)
        self.line, self._shore = socket.socketpair()

    def open(self, loop: Loop) -> None:
        ferry = Ferry(loop, self._shore, lambda: loop.unwatch(self._listener.fileno()))

        def called(events: int) -> None:
            try:
                stream, caller = self._listener.accept()
            except OSError:
                return
            if self._listener.family == socket.AF_VSOCK and caller[0] != socket.VMADDR_CID_HOST:
                stream.close()
            else:
                ferry.cross(stream)

        self._listener.setblocking(False)
        loop.watch(self._listener.fileno(), IN, called)

    def descriptors(self) -> tuple[int, ...]:
        return self._listener.fileno(), self._shore.fileno(), self.line.fileno()


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    listener.bind((socket.VMADDR_CID_ANY, port))
    listener.listen(_BACKLOG)
    return listener
