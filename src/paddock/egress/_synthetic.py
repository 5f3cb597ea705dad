"""Addresses that stand for names: what a sandbox's resolver is told, and what its connections are taken back to."""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict

NETWORK = ipaddress.IPv4Network("198.18.0.0/15")
GATEWAY = "198.18.0.1"
"""The gateway itself, as an explicit proxy."""

MOST_NAMES = 4096
_FIRST = int(NETWORK.network_address) + 256
_LAST = int(NETWORK.broadcast_address) - 1


class Synthetic:
    """The names of one sandbox. The least recently used makes room for a new one, but not while it is connected to;
    its address is given to another name as late as possible."""

    def __init__(self, most: int = MOST_NAMES, first: int = _FIRST, last: int = _LAST) -> None:
        self._most, self._first, self._last = most, first, last
        self._next = first
        self._by_name: OrderedDict[str, str] = OrderedDict()
        self._by_address: dict[str, str] = {}
        self._live: Counter[str] = Counter()

    def address(self, name: str) -> str | None:
        """None: there is room for no further name."""
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
        """The name that was answered with `address`, which counts as used by that."""
        name = self._by_address.get(address)
        if name is not None:
            self._by_name.move_to_end(name)
        return name

    def hold(self, name: str) -> None:
        """A connection to `name` lives, until `release`."""
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
