"""Routes of a network namespace with only `lo`, and this machine's route for an address.

Facts: rtnetlink(7), include/uapi/linux/rtnetlink.h.
"""

from __future__ import annotations

import socket
import struct

from paddock.linux import netlink

_ROUTE = struct.Struct("=8BI")  # struct rtmsg: family, lengths of dst and src, tos, table, protocol, scope, type, flags
_NEWROUTE = 24
_CREATE, _EXCLUSIVE = 0x400, 0x200
_TABLE_LOCAL, _BY_BOOT, _HOST, _UNIVERSE, _LOCAL = 255, 3, 254, 0, 2
_OUT, _PREFERRED_SOURCE = 4, 7
_NETLINK_ROUTE = 0
_LOOPBACK = struct.pack("=i", 1)


def _everything(family: int, scope: int, source: bytes, sequence: int) -> bytes:
    body = _ROUTE.pack(family, 0, 0, 0, _TABLE_LOCAL, _BY_BOOT, scope, _LOCAL, 0)
    body += netlink.attribute(_OUT, _LOOPBACK) + netlink.attribute(_PREFERRED_SOURCE, source)
    return netlink.message(_NEWROUTE, netlink.ACK | _CREATE | _EXCLUSIVE, body, sequence)


# The source is the loopback's. By default it would be the called address itself.
_ALL_OF_4 = _everything(socket.AF_INET, _HOST, bytes((127, 0, 0, 1)), 1)
_ALL_OF_6 = _everything(socket.AF_INET6, _UNIVERSE, bytes(15) + b"\x01", 2)


def keep_everything(*, version_6: bool) -> None:
    """Make every address local to this namespace, on `lo`, which must be up.

    Connections to any reach the listeners here. Needs CAP_NET_ADMIN over the namespace. Raises OSError.
    """
    messages = (_ALL_OF_4, _ALL_OF_6) if version_6 else (_ALL_OF_4,)
    netlink.send(_NETLINK_ROUTE, b"".join(messages), acknowledgements=len(messages), what="make all addresses local")


def is_own(address: str) -> bool:
    """Tell whether an address is this machine's: then it is also the source of packets to it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return False
        return probe.getsockname()[0] == address
