"""Whose a connection is, asked of the kernel (sock_diag(7), include/uapi/linux/inet_diag.h)."""

from __future__ import annotations

import errno
import socket
import struct

from paddock.linux import netlink

_NETLINK_SOCK_DIAG = 4
_BY_FAMILY = 20
_ERROR = 2
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI")  # struct inet_diag_req_v2: family, protocol, extensions, states
_PORTS = struct.Struct("!HH")  # struct inet_diag_sockid begins with them, then 16 bytes for each address
_NO_INTERFACE_NO_COOKIE = struct.pack("=III", 0, 0xFFFF_FFFF, 0xFFFF_FFFF)
_INODE = struct.Struct("=I")
_INODE_AT = 16 + 4 + 48 + 16  # after header, four bytes, sockid, and expires, rqueue, wqueue, uid
_PORTS_AT = 16 + 4
_ALL_STATES = 0xFFFF_FFFF
_REPLY_BYTES = 4096


def open_here() -> socket.socket:
    """A socket for `inode_of` that is about this network namespace, whoever has it later. OSError."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)


def inode_of(diag: socket.socket, local: tuple[str, int], remote: tuple[str, int]) -> int:
    """Of the TCP socket that has exactly these ends, as /proc/<pid>/fd shows it (`socket:[inode]`).

    0: nobody holds it any more. OSError: ENOENT where there is none, or what the kernel says. Some 16 µs.
    """
    ends = _ends(local, remote)
    diag.send(_question(ends, local))
    answer = diag.recv(_REPLY_BYTES, socket.MSG_DONTWAIT)  # it is there when the kernel has taken the question
    if len(answer) < _HEADER.size + 4:
        raise OSError(errno.EPROTO, "an answer that is cut off", "sock_diag")
    _, kind, _, _, _ = _HEADER.unpack_from(answer)
    if kind == _ERROR:
        code = -int(struct.unpack_from("=i", answer, _HEADER.size)[0])
        raise OSError(code or errno.EPROTO, "no such connection", "sock_diag")
    if len(answer) < _INODE_AT + _INODE.size or answer[_PORTS_AT : _PORTS_AT + _PORTS.size] != ends[: _PORTS.size]:
        raise OSError(errno.EPROTO, "an answer to something else", "sock_diag")
    return int(_INODE.unpack_from(answer, _INODE_AT)[0])


def _ends(local: tuple[str, int], remote: tuple[str, int]) -> bytes:
    addresses = (socket.inet_pton(_family(address), address) for address, _ in (local, remote))
    return _PORTS.pack(local[1], remote[1]) + b"".join(address.ljust(16, b"\0") for address in addresses)


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _question(ends: bytes, local: tuple[str, int]) -> bytes:
    body = _REQUEST.pack(_family(local[0]), socket.IPPROTO_TCP, 0, _ALL_STATES) + ends + _NO_INTERFACE_NO_COOKIE
    return netlink.message(_BY_FAMILY, 0, body)
