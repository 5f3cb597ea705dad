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
"""Changes a fork of a node's state; the number says which branch it is. The text that it returns describes the step."""
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
    """Search a tree of forks: take steps from the best states, and drop the others.

    A step that fails becomes a node without a score, and ends there. Every fork is dead at the end.

    Args:
        checkout: The warm state, which is the root.
        step: Called with a fork, its parent's node and the branch's number, from 0. It changes files there, and returns
            a label.
        score: Called with a fork of the state. It returns how good the state is: more is better.
        branches: How many steps from each state.
        beam: Go on from the best so many of each depth. None: from the best state of all.
        budget: How deep, how many nodes, how many seconds. None: `SearchBudget()`.
        goal: Stop at a state with this score.
        parallel: How many forks at once. None: as many as there are processors.

    Returns:
        All nodes, and why it stopped. The best has its diff.

    Raises:
        InvalidArgumentError: `branches`, `beam` or `parallel` is below 1.
        PlatformError: paddock or the machine failed.

    Example:
        ```python
        async def step(sandbox, node, branch):
            await sandbox.exec(f"printf {branch} >> word")
            return str(branch)

        async def score(sandbox):
            return 1.0 if await sandbox.files.read_text("word") == "1" else 0.0

        found = await atree_search(checkout, step, score, branches=2)
        print(found.stop, found.best.label)  # goal 1
        ```
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
