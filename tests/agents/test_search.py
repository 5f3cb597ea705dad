"""A tree of forks: the promising are gone on from, budgets hold, nothing is left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from paddock import AsyncSandbox, Sandbox
from paddock.agents import AsyncCheckout, Checkout, Node, SearchBudget, atree_search, tree_search
from paddock.errors import InvalidArgumentError, InvalidStateError, ResourceExhaustedError
from tests.conftest import SandboxFactory
from tests.orphans import wait_until

GOAL = "abc"


@pytest.fixture
def checkout(sandbox: SandboxFactory) -> Checkout:
    base = sandbox()
    base.exec("touch word", check=True)
    return Checkout.of(base)


def living() -> set[str]:
    return {box.id for box in Sandbox.list()}


def letter(box: Sandbox, node: Node, branch: int) -> str:
    """Appends one of three letters."""
    box.exec(["sh", "-c", 'printf %s "$1" >> word', "sh", GOAL[branch]], check=True)
    return GOAL[branch]


def closeness(box: Sandbox) -> float:
    """How much of the goal the word begins with; it leaves something behind, which is no part of the state."""
    word = box.filesystem.read_text("word")
    box.filesystem.write("word", "spoilt")
    return len(word) / len(GOAL) if GOAL.startswith(word) else 0.0


@pytest.mark.parametrize("beam", [None, 1, 2])
def test_the_goal_is_found_and_the_way_to_it_told(checkout: Checkout, beam: int | None) -> None:
    alive = living()
    found = tree_search(checkout, letter, closeness, branches=3, beam=beam)
    assert found.stop == "goal"
    best = found.best
    assert best is not None
    assert (best.score, best.depth) == (1.0, 3)
    assert [node.label for node in found.path(best)] == [None, "a", "b", "c"]
    assert b"+abc" in best.diff
    assert len(found.nodes) - 1 == (9 if beam != 2 else 15)
    assert living() == alive


def test_budgets_of_depth_nodes_and_time_end_it(checkout: Checkout) -> None:
    shallow = tree_search(checkout, letter, closeness, beam=1, budget=SearchBudget(max_depth=2))
    assert shallow.stop == "depth"
    assert max(node.depth for node in shallow.nodes) == 2
    assert shallow.best is not None
    assert shallow.best.score == pytest.approx(2 / 3)
    few = tree_search(checkout, letter, closeness, budget=SearchBudget(max_nodes=4))
    assert (few.stop, len(few.nodes)) == ("nodes", 5)
    late = tree_search(checkout, letter, closeness, budget=SearchBudget(max_seconds=1e-9))
    assert (late.stop, late.nodes, late.best) == ("time", (Node(id=0),), None)


def test_a_step_that_fails_is_a_dead_end_that_says_why(checkout: Checkout) -> None:
    def step(box: Sandbox, node: Node, branch: int) -> str:
        if branch == 1:
            raise InvalidStateError("no such way")
        return letter(box, node, branch)

    found = tree_search(checkout, step, closeness, branches=2, budget=SearchBudget(max_depth=1))
    assert [node.failure for node in found.nodes] == [None, None, "no such way"]
    assert found.best is found.nodes[1]


def test_whatever_ends_it_every_fork_is_dead(checkout: Checkout) -> None:
    alive = living()

    def step(box: Sandbox, node: Node, branch: int) -> str:
        if node.depth == 1:
            raise ResourceExhaustedError("no disk")
        return letter(box, node, branch)

    with pytest.raises(ResourceExhaustedError):
        tree_search(checkout, step, closeness, beam=3)
    assert wait_until(lambda: living() == alive)


def test_a_cancelled_search_leaves_no_fork(checkout: Checkout) -> None:
    alive = living()

    async def main() -> None:
        base = await AsyncSandbox.connect(checkout.sandbox.id)
        recorded = await AsyncCheckout.of(base)
        deep = asyncio.Event()

        async def step(box: AsyncSandbox, node: Node, branch: int) -> str:
            if node.depth == 1:
                deep.set()
                await box.exec("sleep 4326")
            return ""

        async def score(box: AsyncSandbox) -> float:
            return 0.5

        task = asyncio.ensure_future(atree_search(recorded, step, score, beam=3))
        await deep.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert wait_until(lambda: living() == alive)


def test_what_makes_no_sense_is_refused(checkout: Checkout, tmp_path: Path) -> None:
    for wrong in ({"branches": 0}, {"beam": 0}, {"parallel": 0}):
        with pytest.raises(InvalidArgumentError):
            tree_search(checkout, letter, closeness, **wrong)
    with pytest.raises(InvalidArgumentError):
        SearchBudget(max_nodes=0)
