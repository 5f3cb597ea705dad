"""What a run of the benchmarks shall do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.contest import Contender
from bench.peers.table import contenders


@dataclass(frozen=True)
class Plan:
    """`repeat` takes the place of every benchmark's own number of rounds."""

    repeat: int | None = None
    with_peers: bool = False

    def rounds(self, default: int) -> int:
        return self.repeat or default

    def peers(self, kind: str) -> Sequence[Contender]:
        """Other people's sandboxes that can do this; see `peers.table`."""
        return contenders(kind) if self.with_peers else ()
