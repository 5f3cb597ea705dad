"""Addresses: the special ranges that a sandbox must not reach, and the addresses embedded in others."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import TypeAlias

import msgspec

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class Block(msgspec.Struct, frozen=True):
    """A range of addresses that paddock refuses, except for the part that a rule names by CIDR."""

    network: Network
    name: str


_NAMED = {
    "a metadata service": "169.254.169.254 169.254.170.2 169.254.170.23 168.63.129.16 100.100.100.200 192.0.0.192"
    " fd00:ec2::254 fd00:ec2::23 fd20:ce::254 fd00:42::42",
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
    "reserved, and for translators (SIIT)": "::/8",
}
"""The first match gives the name: the metadata services lie within wider blocks."""
SPECIAL = tuple(
    Block(ipaddress.ip_network(network), name) for name, networks in _NAMED.items() for network in networks.split()
)
WITHIN = frozenset({"private", "shared by a carrier (CGNAT)", "documentation"})
"""The ranges of the servers inside a private network."""


TRANSLATED = tuple(map(ipaddress.IPv6Network, ("::/96", "::ffff:0:0/96", "64:ff9b::/96", "2002::/16")))
"""Ranges of IPv6 addresses that embed an IPv4 address, the last of them before its other bits."""
_COMPATIBLE, _, _NAT64, _ = TRANSLATED
_LOW32 = (1 << 32) - 1


def parse_address(text: str) -> Address | None:
    """Parse an address as `ipaddress` writes it, and no other spelling that resolvers take."""
    try:
        return None if "%" in text else ipaddress.ip_address(text)
    except ValueError:
        return None


def unwrapped(address: Address) -> Address:
    """Return the address at the far end: the one inside a v4-mapped, NAT64 or 6to4 address."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return ipaddress.IPv4Address(int(address) & _LOW32)
    return address.ipv4_mapped or address.sixtofour or address


def far_end(text: str) -> str:
    """Return the address that packets to this one reach in the end, through a translator."""
    address = parse_address(text)
    return text if address is None else str(unwrapped(address))


@lru_cache(1024)
def special(address: Address) -> Block | None:
    """Return the block of an unwrapped address."""
    return next((block for block in SPECIAL if address in block.network), None)


def is_public(text: str) -> bool:
    """Tell whether the gateway connects to this address without a rule that names it. An own address of the machine
    passes here: `linux.routes` knows those."""
    address = parse_address(text)
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
