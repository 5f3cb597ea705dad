"""Where a conformance test runs: one event loop, one backend, the sandboxes made in it, and their end."""

from __future__ import annotations

import asyncio
import functools
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Protocol, TypeVar

import pytest

from paddock.backends.base import Backend, Capabilities, SandboxPlan
from paddock.errors import PaddockError
from paddock.model import Limit, SandboxSpec

from ._box import Box

TEST_SECONDS = 90.0
CLEANUP_SECONDS = 30.0

T = TypeVar("T")
S = TypeVar("S")


class ConformanceHarness(Protocol):
    """What a backend's author supplies: objects of the backend, and plans with trees to run on.

    It may have `test_seconds`, how long one test may take in place of 90 s: where a processor is emulated, say.
    The template of every plan needs `sh` and `python3` (3.8 or later) on its PATH, and a writable working directory.
    """

    def backend(self) -> Backend:
        """A new object over the same state each time: a second one is a later service."""
        ...

    async def plan(self, spec: SandboxSpec) -> SandboxPlan:
        """A decided plan with a tree of its own; `deadline` is `spec.ttl_seconds` from now."""
        ...

    async def cleanup(self, plan: SandboxPlan) -> None:
        """Called once for each plan, when its sandbox is dead: deletes the tree."""
        ...


class Lab:
    """The objects of one test. Everything made through it is ended by it."""

    def __init__(self, harness: ConformanceHarness) -> None:
        self.harness = harness
        self.backend = harness.backend()
        self.marker = f"paddock-conformance-{secrets.token_hex(8)}"
        """A string that no other process on the machine has among its arguments."""
        self._backends: list[Backend] = [self.backend]
        self.boxes: list[Box] = []
        self.plans: list[SandboxPlan] = []

    @property
    def capabilities(self) -> Capabilities:
        return self.backend.capabilities

    @property
    def test_seconds(self) -> float:
        return getattr(self.harness, "test_seconds", TEST_SECONDS)

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        asyncio.run(self._bounded(test))

    async def plan(self, **spec: Any) -> SandboxPlan:
        spec.setdefault("ttl_seconds", max(SandboxSpec().ttl_seconds, self.test_seconds))
        plan = await self.harness.plan(SandboxSpec(**spec))
        self.plans.append(plan)
        return plan

    async def box(self, **spec: Any) -> Box:
        """A new sandbox of the backend under test, from keywords of SandboxSpec."""
        plan = await self.plan(**spec)
        return self.keep(Box(await self.backend.create(plan), plan))

    def keep(self, box: Box) -> Box:
        self.boxes.append(box)
        return box

    def second_backend(self) -> Backend:
        """What a service that starts later has."""
        backend = self.harness.backend()
        self._backends.append(backend)
        return backend

    async def _bounded(self, test: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(self.test_seconds):
                await test
        finally:
            async with asyncio.timeout(CLEANUP_SECONDS):
                await self._end()

    async def _end(self) -> None:
        for box in self.boxes:
            await box.instance.kill()
            await box.let_go()
            await box.instance.aclose()
        for plan in self.plans:
            try:
                await self.backend.forget(plan.id)
            except PaddockError:
                continue  # a test may have forgotten it, or it never came to life
            finally:
                await self.harness.cleanup(plan)
        for backend in self._backends:
            await backend.aclose()


class Bench:
    """Base of every chapter. A subclass overrides the fixture `harness`."""

    @pytest.fixture
    def harness(self) -> ConformanceHarness:
        raise NotImplementedError("override the fixture `harness` with one that returns a ConformanceHarness")

    @pytest.fixture
    def lab(self, harness: ConformanceHarness) -> Lab:
        return Lab(harness)


def guarantee(
    *needs: str | Limit,
) -> Callable[[Callable[[S, Lab], Coroutine[Any, Any, None]]], Callable[[S, Lab], None]]:
    """Makes an asynchronous test an ordinary one that runs on a fresh loop.

    `needs` are fields of Capabilities, or limits; the test is skipped, with the reason, where the backend doesn't
    claim one.
    """

    def decorate(test: Callable[[S, Lab], Coroutine[Any, Any, None]]) -> Callable[[S, Lab], None]:
        @functools.wraps(test)
        def run(self: S, lab: Lab) -> None:
            async def claimed() -> None:
                await lab.backend.state()  # what a backend can do here it may know only when it was used once
                for need in needs:
                    _skip_unless_claimed(lab.backend, need)
                await test(self, lab)

            lab.run(claimed())

        return run

    return decorate


def _skip_unless_claimed(backend: Backend, need: str | Limit) -> None:
    if isinstance(need, Limit):
        claimed = need in backend.capabilities.enforced
        feature = f"enforced limit {need.value!r}"
    else:
        claimed = bool(getattr(backend.capabilities, need))
        feature = repr(need)
    if not claimed:
        pytest.skip(f"backend {backend.name!r} does not claim {feature} here")


def rounds(most: int, *, seconds: float = 20.0) -> Iterator[int]:
    """Of an attack that is tried again and again: fewer where each takes long."""
    deadline = time.monotonic() + seconds
    for number in range(most):
        yield number
        if time.monotonic() > deadline:
            return


async def eventually(what: str, probe: Callable[[], Awaitable[T]], *, seconds: float = 60.0) -> T:
    """The first true answer of `probe`; fails with `what` and the last answer when none comes in time."""
    deadline = time.monotonic() + seconds
    while True:
        answer = await probe()
        if answer:
            return answer
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:g} s: {what} (last seen: {answer!r})")
        await asyncio.sleep(0.01)
