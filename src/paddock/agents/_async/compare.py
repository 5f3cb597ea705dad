"""Prepare one sandbox, fork it for each attempt, test each, and keep the best. It always kills the others."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from paddock.agents._attempt import NOT_NEEDED, Attempt, Comparison, DiffSize, Effort, Test
from paddock.agents._budget import Meter
from paddock.agents._colours import AsyncScope, Later, agather
from paddock.client import AsyncSandbox
from paddock.errors import InvalidArgumentError, ModelFailedError, RequestError, SandboxError

from .agent import AsyncAgent
from .checkout import AsyncCheckout

Try = Callable[[AsyncSandbox, int], Later[Effort | None]]
"""Makes an attempt in a fork. The number identifies the attempt, from 0."""


async def acompare(
    checkout: AsyncCheckout,
    patches: Mapping[str, bytes | str],
    test: Test,
    *,
    parallel: int | None = None,
    first_passing: bool = False,
    on_attempt: Callable[[Attempt], object] = lambda _: None,
) -> Comparison:
    """Judge patches, each in a fork, and rank them.

    The best passes its test. Of several it passes the most tests, then changes the least. A patch that doesn't apply
    fails alone. An error of the platform ends all of it.

    Args:
        checkout: The warm state that the patches are against.
        patches: The patches by name, as texts or bytes.
        test: The command that judges.
        parallel: How many at once. None: as many as there are processors.
        first_passing: Stop the others when one passes.
        on_attempt: Called with each Attempt at its end.

    Returns:
        All attempts, in the order of `patches`.

    Raises:
        PlatformError: paddock or the machine failed.

    Example:
        ```python
        async with await checkout.sandbox.fork() as child:
            await child.exec("sed -i 's/return x/return 2 * x/' task.py")
            patch = await checkout.diff(child)
        found = await acompare(checkout, {"doubles": patch, "nothing": b""}, Test("grep -q '2 . x' task.py"))
        print(found.best.name)  # doubles
        ```
    """

    async def work(name: str, patch: bytes | str, scope: AsyncScope) -> Attempt:
        data = patch.encode() if isinstance(patch, str) else patch
        began = time.monotonic()
        return await _judged(checkout, name, data, test, scope, began, Effort())

    calls = [partial(work, name, patch) for name, patch in patches.items()]
    return await _together(list(patches), calls, parallel, first_passing, on_attempt)


async def abest_of(
    count: int,
    checkout: AsyncCheckout,
    attempt: Try,
    test: Test,
    *,
    parallel: int | None = None,
    first_passing: bool = False,
    on_attempt: Callable[[Attempt], object] = lambda _: None,
) -> Comparison:
    """Make several attempts at one thing, each in a fork, and rank them.

    `acompare` judges the change of each attempt, as a diff in a fresh fork.

    Args:
        count: How many attempts, at least 1.
        checkout: The warm state that they start from.
        attempt: Called with a fork and the attempt's number, from 0. It changes files there, and may return its Effort.
        test: The command that judges.
        parallel: How many at once. None: as many as there are processors.
        first_passing: Stop the others when one passes.
        on_attempt: Called with each Attempt at its end.

    Returns:
        All attempts, in order.

    Raises:
        InvalidArgumentError: `count` or `parallel` is below 1.
        PlatformError: paddock or the machine failed.

    Example:
        ```python
        async def attempt(sandbox, number):
            await sandbox.exec(f"sed -i 's/return x/return {number} * x/' task.py")

        found = await abest_of(3, checkout, attempt, Test("grep -q 'return 2' task.py"))
        print(found.best.name)  # attempt 3
        ```
    """
    if count < 1:
        raise InvalidArgumentError(f"best of {count}: there has to be at least one attempt")

    async def work(number: int, name: str, scope: AsyncScope) -> Attempt:
        began, effort = time.monotonic(), Effort()
        try:
            async with aforked(checkout.sandbox, scope) as child:
                effort = await attempt(child, number) or effort
                diff = await checkout.diff(child)
        except (RequestError, SandboxError, ModelFailedError) as error:
            return Attempt(name=name, failure=str(error), effort=effort, seconds=time.monotonic() - began)
        return await _judged(checkout, name, diff, test, scope, began, effort)

    names = [f"attempt {number + 1}" for number in range(count)]
    calls = [partial(work, number, name) for number, name in enumerate(names)]
    return await _together(names, calls, parallel, first_passing, on_attempt)


def aagent_attempt(agents: AsyncAgent | Callable[[int], AsyncAgent], task: str, *, test: Test | None = None) -> Try:
    """Return an attempt for `abest_of` that lets an agent work.

    All attempts share one budget, the first agent's.

    Args:
        agents: One agent for all, or a function from the attempt's number to an agent.
        task: The task, in words.
        test: When the agent says that it has finished and these tests fail, it reads why and goes on.

    Returns:
        A function for the argument `attempt`.

    Example:
        ```python
        attempt = aagent_attempt(AsyncAgent(model), "Make the tests pass")
        found = await abest_of(2, checkout, attempt, Test("grep -q double task.py"))
        print(found.best.effort.steps)  # 1
        ```
    """
    choose: Callable[[int], AsyncAgent] = agents if callable(agents) else lambda _: agents
    meter = Meter(choose(0).budget)

    async def work(sandbox: AsyncSandbox, number: int) -> Effort:
        agent = choose(number)

        async def verify(sandbox: AsyncSandbox) -> str | None:
            assert test is not None
            result = await sandbox.exec(test.command, cwd=agent.directory, timeout_seconds=test.timeout_seconds)
            return None if result.ok else f"`{test.command}` does not pass yet:\n{result.observation(8000)}"

        run = await agent.run(task, sandbox, verify=verify if test else None, meter=meter, name=f"attempt {number + 1}")
        return Effort(steps=run.steps, tokens=run.tokens, usd=run.usd, stop=run.stop, note=run.error)

    return work


@asynccontextmanager
async def aforked(parent: AsyncSandbox, scope: AsyncScope) -> AsyncGenerator[AsyncSandbox]:
    """Yield a fork that is dead at the end of the block."""
    async with await parent.fork() as child:
        scope.hold(child)
        yield child


async def _judged(
    checkout: AsyncCheckout, name: str, patch: bytes, test: Test, scope: AsyncScope, began: float, effort: Effort
) -> Attempt:
    diff, applied, failure = b"", None, None
    try:
        async with aforked(checkout.sandbox, scope) as child:
            applied = await checkout.apply(child, patch)
            diff = await checkout.diff(child)
            verdict = await checkout.test(child, test)
    except (RequestError, SandboxError) as error:
        verdict, failure = None, str(error)
    return Attempt(
        name=name,
        verdict=verdict,
        failure=failure,
        diff=diff,
        size=DiffSize.of(diff),
        applied=applied,
        effort=effort,
        seconds=time.monotonic() - began,
    )


async def _together(
    names: list[str],
    calls: Sequence[Callable[[AsyncScope], Later[Attempt]]],
    parallel: int | None,
    first_passing: bool,
    on_attempt: Callable[[Attempt], object],
) -> Comparison:
    limit = len(os.sched_getaffinity(0)) if parallel is None else parallel
    if limit < 1:
        raise InvalidArgumentError(f"parallel is {parallel}: at least one at once")
    began = time.monotonic()

    def ended(attempt: Attempt) -> bool:
        on_attempt(attempt)
        return first_passing and attempt.passed

    found = await agather(limit, calls, ended)
    attempts = [
        Attempt(name=name, failure=NOT_NEEDED) if attempt is None else attempt
        for name, attempt in zip(names, found, strict=True)
    ]
    return Comparison(attempts=tuple(attempts), seconds=time.monotonic() - began)
