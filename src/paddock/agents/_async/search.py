"""A tree of forks: go on from the most promising states, drop the others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

import msgspec

from paddock.agents._attempt import Found, Node, SearchBudget
from paddock.agents._colours import AsyncScope, Later, agather
from paddock.client import AsyncSandbox
from paddock.errors import InvalidArgumentError, ModelFailedError, RequestError, SandboxError

from .checkout import AsyncCheckout
from .compare import aforked

Step = Callable[[AsyncSandbox, Node, int], Later[str | None]]
"""Changes a fork of a node's state. The number identifies the branch. The result describes the step."""
Score = Callable[[AsyncSandbox], Later[float]]
"""Scores a state in a separate fork. Its own changes there aren't part of the state."""


async def atree_search(
    checkout: AsyncCheckout,
    step: Step,
    score: Score,
    *,
    branches: int = 3,
    beam: int | None = None,
    budget: SearchBudget | None = None,
    goal: float = 1.0,
    parallel: int | None = None,
) -> Found:
    """Search from the warm state, with `branches` steps from each state.

    With `beam`, the best so many of each depth continue together. Without it, the best state of all continues next. The
    search ends when a state scores `goal`, or with its budget. A step that fails is a node without a score, and the
    search doesn't continue from it. It keeps the diff of the best, and always kills every fork.
    """
    search = _Search(checkout, step, score, len(os.sched_getaffinity(0)) if parallel is None else parallel)
    budget = budget or SearchBudget()
    if branches < 1 or (beam is not None and beam < 1) or search.parallel < 1:
        raise InvalidArgumentError("branches, beam and parallel are at least 1")
    began = time.monotonic()
    try:
        stop = await search.run(branches, beam, budget, goal, began)
    finally:
        await search.drop(list(search.states))
    return Found(nodes=tuple(search.nodes), stop=stop, seconds=time.monotonic() - began)


class _Search:
    """A search. `states` are the forks of the nodes from which it may continue."""

    def __init__(self, checkout: AsyncCheckout, step: Step, score: Score, parallel: int) -> None:
        self._checkout = checkout
        self._step = step
        self._score = score
        self.parallel = parallel
        self.nodes: list[Node] = [Node(id=0)]
        self.states: dict[int, AsyncSandbox] = {}

    async def run(self, branches: int, beam: int | None, budget: SearchBudget, goal: float, began: float) -> str:
        frontier = [0]
        while frontier:
            if time.monotonic() - began >= budget.max_seconds:
                return "time"
            looked_at = len(frontier) if beam is not None else 1
            chosen, rest = frontier[:looked_at], frontier[looked_at:]
            room = budget.max_nodes - (len(self.nodes) - 1)
            children = await self._grow(chosen, branches, room)
            await self.drop(chosen)
            if any(child.score is not None and child.score >= goal for child in children):
                return "goal"
            if len(self.nodes) - 1 >= budget.max_nodes:
                return "nodes"
            grown = [child.id for child in children if child.score is not None and child.depth < budget.max_depth]
            frontier = sorted([*rest, *grown], key=lambda id: (-(self.nodes[id].score or 0.0), id))
            if beam is not None:
                frontier = frontier[:beam]
            await self.drop([id for id in self.states if id not in frontier])
        return "depth"

    async def _grow(self, parents: list[int], branches: int, room: int) -> list[Node]:
        wanted = [(parent, branch) for parent in parents for branch in range(branches)][:room]
        first = len(self.nodes)
        calls = [
            partial(self._child, first + number, self.nodes[parent], branch)
            for number, (parent, branch) in enumerate(wanted)
        ]
        children = [child for child in await agather(self.parallel, calls) if child is not None]
        self.nodes += children
        return children

    async def _child(self, id: int, parent: Node, branch: int, scope: AsyncScope) -> Node:
        node = Node(id=id, parent=parent.id, depth=parent.depth + 1)
        try:
            state = await self.states.get(parent.id, self._checkout.sandbox).fork()
            self.states[id] = state
            scope.hold(state)
            label = await self._step(state, parent, branch)
            diff = await self._checkout.diff(state)
            async with aforked(state, scope) as judged:
                score = float(await self._score(judged))
        except (RequestError, SandboxError, ModelFailedError) as error:
            return msgspec.structs.replace(node, failure=str(error))
        return msgspec.structs.replace(node, label=label, diff=diff, score=score)

    async def drop(self, ids: list[int]) -> None:
        for id in ids:
            state = self.states.pop(id, None)
            if state is not None:
                await state.kill()
