"""A codec without I/O: it converts bytes and descriptors to frames.

A frame is a header of 16 bytes, little-endian, and a body of JSON:

    u32 length of the body | u16 kind | u16 flags | u32 channel | u8 number of descriptors | u8 0 | u16 0

The descriptors of a frame travel with its first byte (SCM_RIGHTS, unix(7)). Each OPEN gets one REPLY or one ERROR on
its channel, and before that any number of CONTROL frames. CLOSE by the side that opened it cancels it. CLOSE on channel
0 is the daemon's last frame on a connection. The daemon has not started any request without an answer there.

Both sides send their PROTOCOL in HELLO. The part before their agreement never changes, so that every version can name
and replace a daemon of every other one. It has the header, HELLO, REPLY, ERROR and CLOSE, and the commands `status`,
`stop` and `restart`. It also has the present fields of `codec.Hello`, `codec.Welcome`, `codec.Status` and
`codec.Request.control`. A reader ignores unknown fields. New ones have defaults.

`docs/design/daemon.md` has the whole.
"""

from __future__ import annotations

import os
from collections import deque, namedtuple
from enum import IntEnum
from struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import NamedTuple

PROTOCOL = 1
MAX_REQUEST = 16 << 20
"""Bytes of a client's body: 2 MiB of arguments and environment, at worst six characters for each byte."""
MAX_REPLY = 1 << 30
"""Bytes of the daemon's body: the output of `exec`, in base64."""
MAX_DESCRIPTORS = 16
"""Descriptors of one frame: as many as a sandbox may have mounts."""
NO_REPLY = 1
"""A flag of OPEN: the client doesn't wait for an answer, and the daemon sends none."""
AGAIN = 2
"""A flag of OPEN: the client repeats it after the end of its connection.

The daemon must not do completed work twice.
"""

_HEADER = Struct("<IHHIBBH")
HEADER_BYTES = _HEADER.size


class WireError(Exception):
    """The data isn't the protocol, or ended in the middle of a frame. The reader must close the connection."""


class NotSent(ConnectionResetError):
    """The peer ended before it had the whole request, or has reported that it didn't start it."""


class Kind(IntEnum):
    HELLO = 1
    OPEN = 2
    REPLY = 3
    ERROR = 4
    CONTROL = 8
    CLOSE = 10


_KINDS = {int(kind): kind for kind in Kind}


if TYPE_CHECKING:

    class _Fields(NamedTuple):
        kind: Kind
        channel: int
        body: bytes = b""
        descriptors: tuple[int, ...] = ()
        flags: int = 0
        lost: bool = False

else:
    _Fields = namedtuple("_Fields", "kind channel body descriptors flags lost", defaults=(b"", (), 0, False))


class Frame(_Fields):
    """A frame. The receiver owns `descriptors` and closes them. `lost`: some didn't fit (recvmsg(2))."""


class Inbox:
    """Buffers at most one unfinished frame. After a WireError it isn't usable. `close` it at the end."""

    def __init__(self, max_body: int) -> None:
        self._max_body = max_body
        self._buffer = bytearray()
        self._descriptors: deque[int] = deque()
        self._lost = False

    def feed(self, data: bytes, descriptors: Iterable[int] = (), *, lost: bool = False) -> list[Frame]:
        """Return the frames that are complete now. `lost`: some descriptors of the next one have not come.
        WireError."""
        self._buffer += data
        self._lost |= lost
        self._descriptors.extend(descriptors)
        frames: list[Frame] = []
        position, end = 0, len(self._buffer)
        while end - position >= HEADER_BYTES:
            length, number, flags, channel, count, zero, zeros = _HEADER.unpack_from(self._buffer, position)
            kind = _KINDS.get(number)
            if kind is None or zero or zeros or count > MAX_DESCRIPTORS:
                raise WireError("a header that is not of this protocol")
            if length > self._max_body:
                raise WireError(f"{kind.name} of {length} bytes, more than {self._max_body}")
            start = position + HEADER_BYTES
            if end - start < length:
                break
            lost = count > len(self._descriptors)
            if lost and not self._lost:
                raise WireError(f"{kind.name} announces {count} descriptors, and {len(self._descriptors)} came")
            self._lost &= not lost
            taken = tuple(self._descriptors.popleft() for _ in range(min(count, len(self._descriptors))))
            position = start + length
            frames.append(Frame(kind, channel, bytes(self._buffer[start:position]), taken, flags, lost))
        del self._buffer[:position]
        if len(self._descriptors) > MAX_DESCRIPTORS:
            raise WireError("more descriptors than the frames announce")
        return frames

    @property
    def is_empty(self) -> bool:
        return not self._buffer

    def close(self) -> None:
        close_all(self._descriptors)
        self._descriptors.clear()


def pack(kind: Kind, channel: int, body: bytes = b"", *, descriptors: Sequence[int] = (), flags: int = 0) -> bytes:
    """Pack one frame. The caller sends its descriptors with the first byte."""
    return _HEADER.pack(len(body), kind, flags, channel, len(descriptors), 0, 0) + body


def close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def copy_all(descriptors: Iterable[int]) -> tuple[int, ...]:
    """Return a copy of each. Raises OSError, with no copy left, at the first that fails."""
    copies: list[int] = []
    try:
        for descriptor in descriptors:
            copies += (os.dup(descriptor),)
    except OSError:
        close_all(copies)
        raise
    return tuple(copies)
