"""Messages to the kernel's network side, prebuilt (netlink(7), rtnetlink(7))."""

from __future__ import annotations

import _socket
import struct
from collections.abc import Iterator

from paddock.linux.syscall import failure

_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")  # struct nlattr: length, type
_LINK = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, change

REQUEST = 0x001
ACK = 0x004
ERROR = 2  # NLMSG_ERROR: also an acknowledgement, with 0
_RTM_NEWLINK = 16
_IFF_UP = 1
_AF_NETLINK, _SOCK_RAW, _SOCK_CLOEXEC, _NETLINK_ROUTE = 16, 3, 0o2000000, 0
_REPLY_BYTES = 8192
_LOOPBACK_INDEX = 1  # always, in every network namespace (net/core/dev.c: LOOPBACK_IFINDEX)


def attribute(kind: int, data: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(data), kind) + data + bytes(-len(data) % 4)


def message(kind: int, flags: int, body: bytes, sequence: int = 1) -> bytes:
    """Return one message. With ACK among `flags`, the kernel answers it."""
    return _HEADER.pack(_HEADER.size + len(body), kind, flags | REQUEST, sequence, 0) + body


LOOPBACK_UP = message(_RTM_NEWLINK, ACK, _LINK.pack(0, 0, _LOOPBACK_INDEX, _IFF_UP, _IFF_UP))


def set_loopback_up() -> None:
    """Brings `lo` of this network namespace up, and with it 127.0.0.1 and ::1. Needs CAP_NET_ADMIN over it."""
    send(_NETLINK_ROUTE, LOOPBACK_UP, acknowledgements=1, what="set lo up")


def send(family: int, data: bytes, *, acknowledgements: int, what: str) -> None:
    """Send prebuilt messages and read that many acknowledgements. Raises OSError for the first error."""
    # The class below `socket.socket`, which makes no enumerations: this runs in a fresh clone, where every first write
    # to a page of memory costs a copy.
    sock = _socket.socket(_AF_NETLINK, _SOCK_RAW | _SOCK_CLOEXEC, family)
    try:
        sock.send(data)
        while acknowledgements > 0:
            for sequence, code in parse_acknowledgements(sock.recv(_REPLY_BYTES)):
                if code:
                    raise failure(code, (what, f"(message {sequence})"))
                acknowledgements -= 1
    finally:
        sock.close()


def messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Kind and sequence number of each message in a datagram, and all of it. ValueError."""
    offset = 0
    while offset < len(data):
        if len(data) - offset < _HEADER.size:
            raise ValueError("a netlink header is cut off")
        length, kind, _, sequence, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size or offset + length > len(data):
            raise ValueError(f"a netlink message of {length} bytes in {len(data) - offset}")
        yield kind, sequence, data[offset : offset + length]
        offset += (length + 3) & ~3


def parse_acknowledgements(data: bytes) -> list[tuple[int, int]]:
    """Sequence number and errno (0: done) of each acknowledgement in a datagram. ValueError."""
    found: list[tuple[int, int]] = []
    for kind, sequence, message in messages(data):
        if kind == ERROR:
            if len(message) < _HEADER.size + 4:
                raise ValueError("a netlink acknowledgement without its code")
            found.append((sequence, -struct.unpack_from("=i", message, _HEADER.size)[0]))
    return found
