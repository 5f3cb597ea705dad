"""Keep a process in the namespace that the supervisor left. Its user owns all namespaces of that user's supervisors. So
it may signal what an earlier supervisor left, which a later one beside it may not."""

from __future__ import annotations

import os
import socket

from paddock.linux import children, pidfd


class Signaller:
    """Start that process, in the current namespaces. It ends with the supervisor."""

    def __init__(self) -> None:
        self._peer, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            children.fork(lambda: _serve(theirs), theirs.fileno())

    def send(self, process: int, number: int) -> None:
        """Send signal `number` to the process of the pidfd `process`. Raises OSError."""
        socket.send_fds(self._peer, [bytes([number])], [process])
        failed = int.from_bytes(self._peer.recv(4), "little")
        if failed:
            raise OSError(failed, os.strerror(failed))


def _serve(peer: socket.socket) -> None:
    while True:
        data, fds, _, _ = socket.recv_fds(peer, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return
        failed = 0
        try:
            pidfd.send_signal(fds[0], data[0])
        except OSError as error:
            failed = error.errno or 1
        finally:
            os.close(fds[0])
        peer.send(failed.to_bytes(4, "little"))
