"""Addresses: the special ranges that a sandbox must not reach, and the addresses embedded in others."""

from __future__ import annotations

import ipaddress
import socket
from bisect import bisect_right
from typing import TypeAlias

import msgspec

Number: TypeAlias = tuple[int, int]
"""4 or 6, and the address as a number."""

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class Block(msgspec.Struct, frozen=True):
    """A range of addresses that paddock refuses, except for the part that a rule names by CIDR."""

    version: int
    first: int
    last: int
    name: str

    def contains(self, network: Network | None) -> bool:
        """Tell whether a network of the same version lies within this range."""
        return (
            network is not None
            and self.first <= int(network.network_address)
            and int(network.broadcast_address) <= self.last
        )


_NAMED = {
    "a metadata service": "169.254.169.254 169.254.170.2 168.63.129.16 100.100.100.200 192.0.0.192 fd00:ec2::254",
    "unspecified": "0.0.0.0/8 ::",
    "loopback": "127.0.0.0/8 ::1",
    "link-local": "169.254.0.0/16 fe80::/10",
    "private": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7 fec0::/10",
    "shared by a carrier (CGNAT)": "100.64.0.0/10",
    "reserved": "192.0.0.0/24 240.0.0.0/4",
    "documentation": "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24 2001:db8::/32 3fff::/20",
    "a relay of 6to4": "192.88.99.0/24",
    "for benchmarks, and of the gateway": "198.18.0.0/15",
    "multicast": "224.0.0.0/4 ff00::/8",
    "translated, privately (NAT64)": "64:ff9b:1::/48",
    "a black hole": "100::/64",
    "a tunnel (Teredo)": "2001::/32",
    "segment routing": "5f00::/16",
}
"""The first match gives the name: the metadata services lie within wider blocks."""
SPECIAL = tuple(
    Block(one.version, int(one.network_address), int(one.broadcast_address), name)
    for name, networks in _NAMED.items()
    for one in map(ipaddress.ip_network, networks.split())
)
WITHIN = frozenset({"private", "shared by a carrier (CGNAT)", "documentation"})
"""The ranges of the servers inside a private network."""


def _table(version: int) -> tuple[tuple[int, ...], tuple[Block | None, ...]]:
    """Return where each block begins or ends, and which block is there."""
    blocks = [block for block in SPECIAL if block.version == version]
    breaks = sorted({edge for block in blocks for edge in (block.first, block.last + 1)})
    containing = (next((block for block in blocks if block.first <= edge <= block.last), None) for edge in breaks)
    return tuple(breaks), (None, *containing)


_TABLES = {4: _table(4), 6: _table(6)}
TRANSLATED = tuple(map(ipaddress.IPv6Network, ("::/96", "::ffff:0:0/96", "64:ff9b::/96", "2002::/16")))
"""Ranges of IPv6 addresses that embed an IPv4 address, the last of them before its other bits."""
_COMPATIBLE, _MAPPED, _NAT64, _6TO4 = (int(one.network_address) for one in TRANSLATED)
_LOW32 = (1 << 32) - 1


def number(text: str) -> Number | None:
    """Parse an address as `ipaddress` writes it, and no other spelling that resolvers take."""
    try:
        if ":" in text:
            return 6, int.from_bytes(socket.inet_pton(socket.AF_INET6, text))
        return 4, int.from_bytes(socket.inet_pton(socket.AF_INET, text))
    except (OSError, UnicodeError, ValueError):
        return None


def unwrapped(address: Number) -> Number:
    """Return the address at the far end: the one inside a v4-mapped, NAT64 or 6to4 address."""
    version, value = address
    if version == 4:
        return address
    high = value >> 32 << 32
    if high in (_MAPPED, _NAT64) or (high == _COMPATIBLE and value > 1):
        return 4, value & _LOW32
    if value >> 112 << 112 == _6TO4:
        return 4, value >> 80 & _LOW32
    return address


def special(address: Number) -> Block | None:
    """Return the block of an unwrapped address."""
    version, value = address
    breaks, blocks = _TABLES[version]
    return blocks[bisect_right(breaks, value)]


def is_public(text: str) -> bool:
    """Tell whether the gateway connects to this address without a rule that names it. An own address of the machine
    passes here: `linux.routes` knows those."""
    address = number(text)
    return address is not None and special(unwrapped(address)) is None


def network(text: str) -> Network:
    """ValueError, in words that follow the text."""
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        pass
    try:
        loose = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError("is neither an address nor a network such as 10.1.0.0/16 or 2001:db8::/32") from None
    raise ValueError(f"has bits beside its prefix; {loose} is the network around it")


def written(address: Number) -> str:
    """Write an address as `ipaddress` does."""
    return str(ipaddress.IPv4Address(address[1]) if address[0] == 4 else ipaddress.IPv6Address(address[1]))
