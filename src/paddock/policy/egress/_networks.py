"""Rules by address: the networks that an address is in, by one look per length of prefix that there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ._addresses import Block, Number
from ._rules import Rule

_BITS = {4: 32, 6: 128}


class Networks:
    """Immutable once made."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        by_length: dict[tuple[int, int], dict[int, list[Rule]]] = {}
        self._within: dict[str, tuple[int, int]] = {}
        for rule in rules:
            network = rule.network
            if network is not None:
                shift = _BITS[network.version] - network.prefixlen
                self._within[rule.name] = int(network.network_address), int(network.broadcast_address)
                table = by_length.setdefault((network.version, shift), {})
                table.setdefault(int(network.network_address) >> shift, []).append(rule)
        self._tables = {
            version: tuple((shift, by_length[v, shift]) for v, shift in sorted(by_length) if v == version)
            for version in (4, 6)
        }

    def around(self, address: Number) -> Iterator[Rule]:
        """The rules whose network holds it, narrowest first."""
        version, value = address
        for shift, table in self._tables[version]:
            found = table.get(value >> shift)
            if found is not None:
                yield from found

    def find(self, address: Number, port: int) -> Rule | None:
        for rule in self.around(address):
            if rule.has_port(port):
                return rule
        return None

    def find_within(self, address: Number, port: int, block: Block) -> Rule | None:
        """A rule that is about a part of the block, or all of it, and nothing beside."""
        for rule in self.around(address):
            first, last = self._within[rule.name]
            if first >= block.first and last <= block.last and rule.has_port(port):
                return rule
        return None


def block_of_one(address: Number) -> Block:
    return Block(address[0], address[1], address[1], "an address of this machine")
