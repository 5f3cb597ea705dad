"""Owners of connections, and buffers of sockets, from the kernel (sock_diag(7), include/uapi/linux/inet_diag.h)."""

from __future__ import annotations

import errno
import os
import socket
import struct

from paddock.linux import netlink

_NETLINK_SOCK_DIAG = 4
_BY_FAMILY = 20
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI")  # struct inet_diag_req_v2: family, protocol, extensions, states
_PORTS = struct.Struct("!HH")  # struct inet_diag_sockid begins with them, then 16 bytes for each address
_NO_INTERFACE_NO_COOKIE = struct.pack("=III", 0, 0xFFFF_FFFF, 0xFFFF_FFFF)
_INODE = struct.Struct("=I")
_INODE_AT = 16 + 4 + 48 + 16  # after header, four bytes, sockid, and expires, rqueue, wqueue, uid
_PORTS_AT = 16 + 4
_ALL_STATES = 0xFFFF_FFFF
_REPLY_BYTES = 4096
# include/uapi/linux/unix_diag.h
_AF_UNIX, _DUMP, _DONE = 1, 0x300, 3
_UNIX_REQUEST = struct.Struct("=BBxxIII8x")  # struct unix_diag_req: family, protocol, states, ino, show, cookie
_SHOW_PEER, _SHOW_RQLEN, _SHOW_MEMINFO = 0x4, 0x10, 0x20
_PEER, _RQLEN, _MEMINFO = 2, 4, 5
_UNIX_INODE_AT, _ATTRIBUTES_AT = 16 + 4, 16 + 16  # in struct unix_diag_msg, and after it
_DUMP_BYTES = 1 << 16
_MOST_SOCKETS = 50_000
_ENDLESS = 1 << 62


def open_here() -> socket.socket:
    """Return a socket for `inode_of`, bound to this network namespace even in another process. Raises OSError."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)


def inode_of(diag: socket.socket, local: tuple[str, int], remote: tuple[str, int]) -> int:
    """Return the inode of the TCP socket with exactly these ends, as in /proc/<pid>/fd (`socket:[inode]`).

    0: no process has it any more. Raises OSError: ENOENT if there is none, or the kernel's error. It takes some 16 µs.
    """
    ends = _ends(local, remote)
    diag.send(_question(ends, local))
    answer = diag.recv(_REPLY_BYTES, socket.MSG_DONTWAIT)  # it is there when the kernel has taken the question
    if len(answer) < _HEADER.size + 4:
        raise OSError(errno.EPROTO, "an answer that is cut off", "sock_diag")
    _, kind, _, _, _ = _HEADER.unpack_from(answer)
    if kind == netlink.ERROR:
        code = -int(struct.unpack_from("=i", answer, _HEADER.size)[0])
        raise OSError(code or errno.EPROTO, "no such connection", "sock_diag")
    if len(answer) < _INODE_AT + _INODE.size or answer[_PORTS_AT : _PORTS_AT + _PORTS.size] != ends[: _PORTS.size]:
        raise OSError(errno.EPROTO, "an answer to something else", "sock_diag")
    return int(_INODE.unpack_from(answer, _INODE_AT)[0])


def unix_bytes(diag: int) -> int:
    """Return the bytes of waiting messages in unix sockets of a network namespace, with sockets under way in messages.

    A message counts for its sender. The kernel reports nothing about a closed sender. Then its receiver counts the most
    that one may send. More sockets than any program needs count as endlessly many bytes. 0: the kernel can't tell
    (CONFIG_UNIX_DIAG).
    """
    body = _UNIX_REQUEST.pack(_AF_UNIX, 0, _ALL_STATES, 0, _SHOW_PEER | _SHOW_RQLEN | _SHOW_MEMINFO)
    held, waiting, living = 0, list[tuple[int, int]](), set[int]()
    with socket.socket(fileno=os.dup(diag)) as asked:
        try:
            asked.send(netlink.message(_BY_FAMILY, _DUMP, body))
            while answer := asked.recv(_DUMP_BYTES, socket.MSG_DONTWAIT):
                for kind, _, part in netlink.messages(answer):
                    if kind in (_DONE, netlink.ERROR):
                        return held + sum(most for peer, most in waiting if peer not in living)
                    living.add(int(_INODE.unpack_from(part, _UNIX_INODE_AT)[0]))
                    size, peer, most = _of_unix(part)
                    held += size
                    if most:
                        waiting.append((peer, most))
                if len(living) > _MOST_SOCKETS:
                    return _ENDLESS
        except (OSError, ValueError):
            pass
    return held


def _of_unix(part: bytes) -> tuple[int, int, int]:
    """Return a socket's sent and unread bytes, its peer's inode, and for a socket with unread data the most that it may
    have.
    """
    sent = peer = unread = most = 0
    at = _ATTRIBUTES_AT
    while at + 4 <= len(part):
        length, kind = struct.unpack_from("=HH", part, at)
        if length < 4:
            break
        if kind == _PEER:
            peer = int(_INODE.unpack_from(part, at + 4)[0])
        elif kind == _RQLEN:
            unread = int(_INODE.unpack_from(part, at + 4)[0])
        elif kind == _MEMINFO:  # include/uapi/linux/sock_diag.h: received, may receive, sent, may send
            received, _, sent, most = struct.unpack_from("=4I", part, at + 4)
            sent += received
        at += (length + 3) & ~3
    return sent, peer, max(unread, most) if unread else 0


def _ends(local: tuple[str, int], remote: tuple[str, int]) -> bytes:
    addresses = (socket.inet_pton(_family(address), address) for address, _ in (local, remote))
    return _PORTS.pack(local[1], remote[1]) + b"".join(address.ljust(16, b"\0") for address in addresses)


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _question(ends: bytes, local: tuple[str, int]) -> bytes:
    body = _REQUEST.pack(_family(local[0]), socket.IPPROTO_TCP, 0, _ALL_STATES) + ends + _NO_INTERFACE_NO_COOKIE
    return netlink.message(_BY_FAMILY, 0, body)
