"""Run background tasks: referenced until they end, cancelled on close, failures reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from paddock.backends.threads import end_of
from paddock.backends.threads import in_thread as in_thread

T = TypeVar("T")


class Tasks:
    def __init__(self, failed: Callable[[str, BaseException], None]) -> None:
        self._failed = failed
        self._running: dict[asyncio.Task[Any], bool] = {}
        """Whether `aclose` waits for their end, and does not cancel them."""
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether no new tasks start; clean-up tasks may still run."""
        return self._closed

    def start(
        self, work: Coroutine[Any, Any, T], *, name: str, awaited: bool = False, finishes: bool = False
    ) -> asyncio.Task[T]:
        """Start a task. `awaited`: a caller waits for the result, and so learns of a failure. `finishes`: `aclose`
        waits for it."""
        if self._closed:
            work.close()
            raise RuntimeError("the tasks were closed")
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running[task] = finishes
        task.add_done_callback(self._forget if awaited else self._ended)
        return task

    async def finish(self, work: Coroutine[Any, Any, T], *, name: str) -> T:
        """Run to the end even if the caller is cancelled: the caller stops waiting, the work continues."""
        return await asyncio.shield(self.start(work, name=name, awaited=True, finishes=True))

    async def complete(self, work: Coroutine[Any, Any, T], *, name: str) -> T:
        """Run `work` to its end. A cancellation of the caller is raised after that, not before."""
        return await end_of(self.start(work, name=name, awaited=True, finishes=True))

    async def aclose(self) -> None:
        """Wait for what `finish` and `complete` have begun, and cancel the rest."""
        self._closed = True
        while self._running:
            for task, finishes in self._running.items():
                if not finishes:
                    task.cancel()
            await asyncio.wait(self._running)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if not task.cancelled():
            task.exception()  # seen, even if the one who waited was cancelled

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(task.get_name(), error)


class Activity:
    """Whether there is anything to look after: an idle daemon isn't woken. `lives` tells whether a sandbox lives,
    on disk too."""

    def __init__(self, lives: Callable[[], bool]) -> None:
        self._owner_lives = lives
        self._waiting: set[asyncio.Event] = set()

    def note(self) -> None:
        """Note that a request has come."""
        for one in self._waiting:
            one.set()

    async def rounds(self, seconds: float) -> AsyncGenerator[None]:
        """Yield every `seconds` while a sandbox lives or requests come, and once after that."""
        due = asyncio.Event()
        due.set()
        self._waiting.add(due)
        while True:
            await due.wait()
            await asyncio.sleep(seconds)
            if not self._owner_lives():
                due.clear()
            yield
