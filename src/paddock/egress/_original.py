"""Where a redirected connection wanted to go, as the kernel's connection tracking has kept it."""

from __future__ import annotations

import socket

_SO_ORIGINAL_DST = 80  # linux/netfilter_ipv4.h; the same number for IPv6, at its own level


def original_destination(sock: socket.socket) -> tuple[str, int]:
    """Of an accepted connection. OSError: it was not redirected."""
    if sock.family == socket.AF_INET:
        name = sock.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)
        return socket.inet_ntop(socket.AF_INET, name[4:8]), int.from_bytes(name[2:4], "big")
    name = sock.getsockopt(socket.IPPROTO_IPV6, _SO_ORIGINAL_DST, 28)
    return socket.inet_ntop(socket.AF_INET6, name[8:24]), int.from_bytes(name[2:4], "big")
