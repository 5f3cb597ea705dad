"""Answers to a sandbox's DNS queries.

The module itself sends no query.

Addresses stand for names: the resolver returns them, and connections to them count as connections to the names.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import dns.exception
import dns.message
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

NETWORK = ipaddress.IPv4Network("198.18.0.0/15")
GATEWAY = "198.18.0.1"
"""The gateway itself, as an explicit proxy."""

MOST_NAMES = 4096
_FIRST = int(NETWORK.network_address) + 256
_LAST = int(NETWORK.broadcast_address) - 1


class Synthetic:
    """The names of one sandbox.

    A new one replaces the least recently used one without a connection.

    The address of a removed name stays unused for as long as possible.
    """

    def __init__(self, most: int = MOST_NAMES, first: int = _FIRST, last: int = _LAST) -> None:
        self._most, self._first, self._last = most, first, last
        self._next = first
        self._by_name: OrderedDict[str, str] = OrderedDict()
        self._by_address: dict[str, str] = {}
        self._live: Counter[str] = Counter()

    def address(self, name: str) -> str | None:
        """Return the address of a name, or None if all addresses are in use."""
        known = self._by_name.get(name)
        if known is not None:
            self._by_name.move_to_end(name)
            return known
        if len(self._by_name) >= self._most and not self._make_room():
            return None
        address = self._unused()
        self._by_name[name], self._by_address[address] = address, name
        return address

    def name(self, address: str) -> str | None:
        """Return the name behind `address`, and mark it as used."""
        name = self._by_address.get(address)
        if name is not None:
            self._by_name.move_to_end(name)
        return name

    def hold(self, name: str) -> None:
        """Keep `name` while a connection to it lives, until `release`."""
        self._live[name] += 1

    def release(self, name: str) -> None:
        self._live[name] -= 1
        if self._live[name] <= 0:
            del self._live[name]

    def _make_room(self) -> bool:
        for name, address in self._by_name.items():
            if name not in self._live:
                del self._by_name[name], self._by_address[address]
                return True
        return False

    def _unused(self) -> str:
        while True:
            address = str(ipaddress.IPv4Address(self._next))
            self._next = self._first if self._next == self._last else self._next + 1
            if address not in self._by_address:
                return address


def is_synthetic(address: str) -> bool:
    return ":" not in address and ipaddress.IPv4Address(address) in NETWORK


TTL_SECONDS = 60
MAX_QUERY_BYTES = 4096
_UDP_BYTES, _MOST_UDP_BYTES = 512, 1232


class Denied(Enum):
    """An answer without an address: the sandbox may not use the name, or not at the moment."""

    NAME = dns.rcode.NXDOMAIN
    NOW = dns.rcode.SERVFAIL


Lookup = Callable[[str], str | Denied]
"""An address (IPv4) for a name in lower case without its final dot."""


def answer(query: bytes, lookup: Lookup, *, udp: bool) -> bytes | None:
    """Answer a query, or return None if it deserves no answer.

    A record of type A has the address. For other types, an allowed name has no data.
    """
    if len(query) < 12 or query[2] & 0x80:
        return None  # too short for a header, or an answer: two that answer each other would never end
    if query[2] >> 3 & 15 != dns.opcode.QUERY:
        return _bare(query, dns.rcode.NOTIMP)
    try:
        message: Any = dns.message.from_wire(query, one_rr_per_rrset=True)
    except (dns.exception.DNSException, ValueError, IndexError):
        return _bare(query, dns.rcode.FORMERR)
    if len(message.question) != 1 or message.answer or message.authority:
        return _bare(query, dns.rcode.FORMERR)
    response: Any = dns.message.make_response(message, recursion_available=True, our_payload=_MOST_UDP_BYTES)
    question = message.question[0]
    if question.rdclass != dns.rdataclass.IN or question.rdtype in (dns.rdatatype.AXFR, dns.rdatatype.IXFR):
        response.set_rcode(dns.rcode.REFUSED)
    elif message.edns > 0:
        response.set_rcode(dns.rcode.BADVERS)
    else:
        _fill(response, question, lookup)
    room = min(max(message.payload, _UDP_BYTES), _MOST_UDP_BYTES) if message.edns >= 0 else _UDP_BYTES
    try:
        return response.to_wire(max_size=room if udp else 65535)
    except (dns.exception.DNSException, ValueError):
        return _bare(query, dns.rcode.SERVFAIL)


def _fill(response: Any, question: Any, lookup: Lookup) -> None:
    try:
        name = question.name.to_text(omit_final_dot=True)
    except (dns.exception.DNSException, ValueError):
        name = ""
    found = lookup(name.lower())
    if isinstance(found, Denied):
        response.set_rcode(found.value)
    elif question.rdtype == dns.rdatatype.A:
        response.answer.append(dns.rrset.from_text(question.name, TTL_SECONDS, "IN", "A", found))


def _bare(query: bytes, code: int) -> bytes:
    """Return an answer without the question, for an unreadable query."""
    flags = 0x8000 | (query[2] & 0x79) << 8 | 0x80 | code
    return query[:2] + flags.to_bytes(2, "big") + bytes(8)


def take_queries(buffer: bytearray) -> Iterator[bytes]:
    """Remove the complete queries from a TCP buffer, in which each has its length before it.

    Raises ValueError if one is too long.
    """
    while len(buffer) >= 2:
        end = 2 + int.from_bytes(buffer[:2], "big")
        if end > 2 + MAX_QUERY_BYTES:
            raise ValueError(f"a query of {end - 2} bytes")
        if len(buffer) < end:
            return
        query = bytes(buffer[2:end])
        del buffer[:end]
        yield query


def frame(message: bytes) -> bytes:
    return len(message).to_bytes(2, "big") + message
