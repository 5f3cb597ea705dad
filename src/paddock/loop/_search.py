"""What a tree search may use, and what it found."""

from __future__ import annotations

import msgspec

from paddock.errors import InvalidArgument


class SearchBudget(msgspec.Struct, frozen=True, kw_only=True):
    max_depth: int = 5
    max_nodes: int = 50
    max_seconds: float = 1800.0

    def __post_init__(self) -> None:
        if self.max_depth < 1 or self.max_nodes < 1 or not self.max_seconds > 0:
            raise InvalidArgument("max_depth, max_nodes and max_seconds have to be more than 0")


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A state that was tried: a step (`label`) from its parent's. Without a score it failed, and `failure` says why."""

    id: int
    parent: int | None = None
    depth: int = 0
    label: str | None = None
    score: float | None = None
    diff: bytes = b""
    """Against the warm state."""
    failure: str | None = None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """`nodes[0]` is the warm state. `stop`: goal, nodes, depth (nothing is left to go on from) or time."""

    nodes: tuple[Node, ...]
    stop: str
    seconds: float = 0.0

    @property
    def best(self) -> Node | None:
        scored = [node for node in self.nodes if node.score is not None]
        return max(scored, key=lambda node: (node.score or 0.0, -node.depth, -node.id)) if scored else None

    def path(self, node: Node) -> tuple[Node, ...]:
        """From the warm state to a node."""
        steps = [node]
        while steps[-1].parent is not None:
            steps.append(self.nodes[steps[-1].parent])
        return tuple(reversed(steps))
