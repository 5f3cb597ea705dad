"""The one way out of a virtual machine, and what its programs are to trust on it.

The machine's card leads to QEMU, which makes ordinary calls in the vessel's jail for it. Nobody answers there but the
gateway, whoever was called, so any address will do for a resolver. Without exits the card is down, and calls fail.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import socket
import struct
from typing import Any

CARD = b"eth0"
_ADDRESS, _MASK, _GATEWAY = "10.0.2.15", "255.255.255.0", "10.0.2.2"  # QEMU's own, docs: "Network user"
_RESOLVER = b"nameserver 192.0.2.53\n"  # RFC 5737: nobody's
_RESOLVERS = "/etc/resolv.conf"
_SIOCADDRT, _SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x890B, 0x8914, 0x8916, 0x891C
_SIOCSIFHWADDR, _ETHERNET = 0x8924, 1  # linux/sockios.h, linux/if_arp.h
_UP, _ROUTE_UP, _ROUTE_GATEWAY = 1, 1, 2
_MOST = 1 << 16


def set_up(card: bytes, *, up: bool) -> None:
    """netdevice(7)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as some:
        fcntl.ioctl(some, _SIOCSIFFLAGS, struct.pack("16sH14x", card, _UP if up else 0))


def rename_card(address: bytes) -> None:
    """Gives the card a hardware address; what it knew of its neighbours goes with the old one (netdevice(7))."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as some:
        fcntl.ioctl(some, _SIOCSIFHWADDR, struct.pack("16sH6s8x", CARD, _ETHERNET, address))


def lead(*, out: bool) -> None:
    """With a way `out`, or without one."""
    if not out:
        return set_up(CARD, up=False)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as some:
        for order, address in ((_SIOCSIFADDR, _ADDRESS), (_SIOCSIFNETMASK, _MASK)):
            fcntl.ioctl(some, order, struct.pack("16s16s", CARD, _internet(address)))
        fcntl.ioctl(some, _SIOCSIFFLAGS, struct.pack("16sH14x", CARD, _UP))
        anywhere = _internet("0.0.0.0")  # noqa: S104 (the route to everywhere, nothing is bound)
        flags = _ROUTE_UP | _ROUTE_GATEWAY
        # struct rtentry, include/uapi/linux/route.h
        route = struct.pack(
            "L16s16s16sHhLPhPLLH", 0, anywhere, _internet(_GATEWAY), anywhere, flags, 0, 0, 0, 0, 0, 0, 0, 0
        )
        with contextlib.suppress(FileExistsError):  # a copy of one that had it
            fcntl.ioctl(some, _SIOCADDRT, route)
    _name_a_resolver()


def trust(files: list[dict[str, Any]]) -> None:
    """Writes what the host gives: of each, `data` in base64, at `place`; and wherever of `systems` there is a file."""
    for file in files:
        data = base64.b64decode(file["data"], validate=True)
        _write(file["place"], data, os.O_CREAT)
        for path in file["systems"]:
            try:
                _write(path, data, 0)
            except OSError:  # none there, or a link: what it leads to is one of the others
                continue


def _name_a_resolver() -> None:
    try:
        with open(os.open(_RESOLVERS, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if b"nameserver" in file.read(_MOST):
                return
        _write(_RESOLVERS, _RESOLVER, 0)
    except OSError:  # an image without one looks up no names, or has its own way
        return


def _write(path: str, data: bytes, flags: int) -> None:
    """In place, for whoever has it open."""
    flags |= os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags, 0o644), "wb") as file:
        file.write(data)


def _internet(address: str) -> bytes:
    return struct.pack("=H2x4s8x", socket.AF_INET, socket.inet_aton(address))
