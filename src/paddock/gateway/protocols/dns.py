"""Answers to a sandbox's DNS queries.

The module itself sends no query.

Addresses stand for names: the resolver returns them, and connections to them count as connections to the names.
"""

from __future__ import annotations

import ipaddress
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple

NETWORK = ipaddress.IPv4Network("198.18.0.0/15")
GATEWAY = "198.18.0.1"
"""The gateway itself, as an explicit proxy."""

MOST_NAMES = 4096
_FIRST = int(NETWORK.network_address) + 256
_LAST = int(NETWORK.broadcast_address) - 1


class SandboxNames:
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

    @contextmanager
    def held(self, name: str) -> Generator[None]:
        """Keep `name` while a connection to it lives."""
        self._live[name] += 1
        try:
            yield
        finally:
            self._live[name] -= 1
            if not self._live[name]:
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
_PAYLOAD_BYTES = 1232
_FORMERR, _SERVFAIL, _NXDOMAIN, _NOTIMP, _REFUSED, _BADVERS = 1, 2, 3, 4, 5, 16
_IN, _A, _OPT, _IXFR, _AXFR = 1, 1, 41, 251, 252


class Denied(Enum):
    """An answer without an address: the sandbox may not use the name, or not at the moment."""

    NAME = _NXDOMAIN
    NOW = _SERVFAIL


Lookup = Callable[[str], str | Denied]
"""An address (IPv4) for a name in lower case without its final dot."""


class _Question(NamedTuple):
    name: str
    kind: int
    rdclass: int
    end: int
    edns: int | None
    """The version of EDNS that the query speaks, if any."""


def answer(query: bytes, lookup: Lookup) -> bytes | None:
    """Answer a query, or return None if it deserves no answer. A has the address; other types of an allowed name have
    no data. An answer has 298 bytes at most, so that it fits into any datagram."""
    if len(query) < 12 or query[2] & 0x80:
        return None  # too short for a header, or an answer: two that answer each other would never end
    if query[2] >> 3 & 15:
        return _bare(query, _NOTIMP)
    question = _read(query)
    if question is None:
        return _bare(query, _FORMERR)
    code, record = 0, b""
    if question.rdclass != _IN or question.kind in (_AXFR, _IXFR):
        code = _REFUSED
    elif question.edns:
        code = _BADVERS
    else:
        found = lookup(question.name.lower())
        if isinstance(found, Denied):
            code = found.value
        elif question.kind == _A:  # 0xC00C: the name is at byte 12
            address = ipaddress.IPv4Address(found).packed
            record = struct.pack("!HHHIH4s", 0xC00C, _A, _IN, TTL_SECONDS, len(address), address)
    extended = b"" if question.edns is None else struct.pack("!xHHBxxxxx", _OPT, _PAYLOAD_BYTES, code >> 4)
    counts = struct.pack("!4H", 1, bool(record), 0, bool(extended))
    return _bare(query, code & 15)[:4] + counts + query[12 : question.end] + record + extended


def _read(query: bytes) -> _Question | None:
    """Read the one question of a query, and at most EDNS after it. None: there is anything else."""
    *counts, additional = struct.unpack_from("!4H", query, 4)
    labels, at = list[bytes](), 12
    while at < len(query) and 0 < query[at] < 64:
        labels.append(query[at + 1 : at + 1 + query[at]])
        at += 1 + query[at]
    end = at + 5
    if counts != [1, 0, 0] or len(query) < end or query[at] or at - 12 > 254:
        return None
    edns, rest = None, query[end:]
    if additional == 1 and rest[:3] == bytes((0, 0, _OPT)) and len(rest) == 11 + int.from_bytes(rest[9:11], "big"):
        edns = rest[6]
    elif additional or rest:
        return None
    # A dot or a strange byte in a label stays visible: no name of a host has a backslash.
    name = ".".join(label.decode("ascii", "backslashreplace").replace(".", "\\.") for label in labels)
    return _Question(name, *struct.unpack_from("!HH", query, at + 1), end, edns)


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
