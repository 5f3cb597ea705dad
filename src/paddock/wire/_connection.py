"""A blocking connection that carries one request at a time."""

from __future__ import annotations

import array
import errno
import select
import socket
import struct
from _thread import allocate_lock
from collections import deque

from ._frames import MAX_DESCRIPTORS, MAX_REPLY, Frame, Inbox, Kind, WireError, close_all, pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_CHUNK = 1 << 16  # more costs malloc(3) a map for each read
_ANCILLARY = socket.CMSG_LEN(MAX_DESCRIPTORS * array.array("i").itemsize)
_TRUNCATED = int(socket.MSG_CTRUNC)  # an enumeration's `&` costs as much as the call
_raising = allocate_lock()


class Connection:
    """A connection for one thread at a time.

    Raises OSError for the socket, and WireError if the peer violates the protocol.
    """

    def __init__(self, peer: socket.socket, *, max_body: int = MAX_REPLY) -> None:
        self._peer = peer
        self._inbox = Inbox(max_body)
        self._ready: deque[Frame] = deque()
        self._was_read = False
        """A flag: `receive` has returned the first of them."""
        self._channel = 0

    def next_channel(self) -> int:
        """Return a number that no earlier request of this connection has. The previous answer is no longer in use."""
        self._drop_read()
        self._channel = self._channel % 0xFFFF_FFFF + 1
        return self._channel

    def send(
        self, kind: Kind, channel: int, body: bytes = b"", *, descriptors: Sequence[int] = (), flags: int = 0
    ) -> None:
        self.send_packed(pack(kind, channel, body, descriptors=descriptors, flags=flags), descriptors)

    def send_packed(self, frames: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send the result of `pack`. `descriptors` belong to the first frame."""
        sent = send_some(self._peer, frames, descriptors)
        if sent < len(frames):
            self._peer.sendall(memoryview(frames)[sent:])

    def receive(self) -> Frame | None:
        """Return the next frame, or None if the connection ends between two frames."""
        self._drop_read()
        while not self._ready:
            data, descriptors, lost = receive_some(self._peer)
            if not data:
                if not self._inbox.is_empty:
                    raise WireError("the connection ended in the middle of a frame")
                return None
            self._ready.extend(self._inbox.feed(data, descriptors, lost=lost))
        self._was_read = True
        return self._ready[0]

    def has_news(self, seconds: float) -> bool:
        """Wait for bytes, or the end, for at most that long."""
        poll = select.poll()
        poll.register(self._peer, select.POLLIN)
        return bool(poll.poll(1000 * seconds))

    def wait_at_most(self, seconds: float) -> None:
        """From now on, `receive` raises BlockingIOError when the peer sends nothing for that long (socket(7))."""
        whole, rest = divmod(int(1e6 * seconds), 10**6)
        self._peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", whole, rest))

    def read(self) -> list[Frame] | None:
        """Read once, after poll(2) reports the peer, and return the complete frames, or None at the end."""
        data, descriptors, lost = receive_some(self._peer)
        return self._inbox.feed(data, descriptors, lost=lost) if data else None

    def unread(self) -> None:
        """Make the next `receive` return the latest frame again: an exception may have come before its
        receiver had it.
        """
        self._was_read = False

    def _drop_read(self) -> None:
        """Drop the latest frame: its receiver has it by now, and closes its descriptors."""
        if self._was_read:
            self._was_read = False
            self._ready.popleft()

    @property
    def is_stale(self) -> bool:
        """Tell whether the peer has closed it, or sent an unexpected frame, since the last request."""
        try:
            self._peer.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def detach(self) -> socket.socket:
        """Return the socket itself, for another reader. Nothing may be under way."""
        return self._peer

    def close(self) -> None:
        self._drop_read()
        for frame in self._ready:
            close_all(frame.descriptors)
        self._inbox.close()
        self._peer.close()


def send_some(peer: socket.socket, data: bytes | memoryview, descriptors: Sequence[int] = ()) -> int:
    """Send as much as one call takes, and return the number of bytes. `descriptors` go with the first byte."""
    if not descriptors:
        return peer.send(data)
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())
    try:
        return peer.sendmsg([data], [rights])
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
    # A user has at most the sender's RLIMIT_NOFILE under way (unix(7)). Sandboxes of an ordinary user are that user,
    # and may have more open than this program: one of them could keep it from sending any.
    import resource

    with _raising:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            return peer.sendmsg([data], [rights])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def receive_some(peer: socket.socket) -> tuple[bytes, list[int], bool]:
    """Return the received data, its descriptors, and whether some are lost for want of space (recvmsg(2)).

    They are close-on-exec.
    """
    data, messages, flags, _ = peer.recvmsg(_CHUNK, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
    if not messages and not flags & _TRUNCATED:
        return data, [], False
    return data, descriptors_in(messages), bool(flags & _TRUNCATED)


def descriptors_in(messages: list[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors in the control messages of recvmsg(2)."""
    descriptors = array.array("i")
    for level, kind, content in messages:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    return list(descriptors)
