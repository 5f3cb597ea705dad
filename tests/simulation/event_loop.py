"""An event loop without a kernel: its clock is a number, and a seed decides what comes first.

What asyncio promises holds: callbacks run in the order in which `call_soon` was called for them, timers in the order of
their times. What no program can rely on is drawn: when the answer of another process, the end of a thread or a client's
frame comes to the end of the queue, and how long each takes. Time passes only when nothing can run, and a little with
each step.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, cast

START = 1000.0
WORLD = 0
generation: ContextVar[int] = ContextVar("generation", default=WORLD)
"""Which daemon a callback belongs to; WORLD is everything that is no daemon."""


class Stuck(Exception):
    """Nothing can run, no timer is set, and somebody waits."""


class Endless(Exception):
    """A history takes more steps than any should."""


class Handle:
    __slots__ = ("args", "callback", "context", "time")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args, self.context, self.time = args, context, 0.0

    def cancel(self) -> None:
        self.callback = None

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.time


class Task(asyncio.Task[Any]):
    """Its hash is the order of creation, not an address, so that sets of tasks have the same order each time."""

    def __init__(self, coro: Any, *, loop: SimulatedLoop, **named: Any) -> None:
        self._order = next(loop.numbers)
        super().__init__(coro, loop=loop, **named)
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        return self._order


class Future(asyncio.Future[Any]):
    def __init__(self, *, loop: SimulatedLoop) -> None:
        self._order = next(loop.numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._order


class SimulatedLoop(asyncio.AbstractEventLoop):
    """`alive` is the generation of the daemon that lives: callbacks of an earlier one never run again."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance.random
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._outer: list[tuple[float, int, Handle]] = []
        """What comes from outside of the daemon's loop, by when it can come at the earliest."""
        self._due: list[Handle] = []
        self._readers: dict[int, Handle] = {}
        self._now, self._order = START, 0
        self._step_seconds = (0.0, 1e-6, 1e-4, 2e-3)[int(self._chance() * 4)]
        self._eager = (0.05, 0.3, 1.0)[int(self._chance() * 3)]
        self.alive = WORLD
        self.numbers = itertools.count()
        """In place of addresses, by which sets are ordered."""
        self.steps = 0
        self.most_steps = 200_000
        self.closed = False
        self.stepped: Callable[[int], None] = lambda steps: None
        self.failed: Callable[[str, BaseException | None], None] = lambda message, error: None
        self.kept: list[object] = []
        """What belonged to dead daemons: collected at the end only, so that no clean-up runs meanwhile."""

    def run(self, work: Coroutine[Any, Any, object]) -> None:
        events._set_running_loop(self)
        try:
            task = self.create_task(work, name="history")
            while not task.done():
                self._step()
            task.result()
        finally:
            events._set_running_loop(None)
            self.closed = True
            vars(asyncio.tasks)["_all_tasks"].clear()  # those of the next history have the same hashes

    def _step(self) -> None:
        self.steps += 1
        if self.steps > self.most_steps:
            raise Endless(f"after {self.steps} steps, {len(self._ready)} callbacks are ready")
        ready, due, outer = self._ready, self._due, self._outer
        while outer and outer[0][0] <= self._now:
            due.append(heapq.heappop(outer)[2])
        if due and (not ready or self._chance() < self._eager):
            index = int(self._chance() * len(due))
            due[index], due[-1] = due[-1], due[index]
            ready.append(due.pop())
        timers = self._timers
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        if not ready:
            while timers and self._is_over(timers[0][2]):
                heapq.heappop(timers)
            times = [queue[0][0] for queue in (timers, outer) if queue]
            if not times:
                raise Stuck
            self._now = max(self._now, min(times))
            return
        handle = ready.popleft()
        callback = handle.callback
        if callback is None:
            return
        of = handle.context.get(generation, WORLD)
        if of != WORLD:
            if of != self.alive:
                self.kept.append(handle)
                return
            self._now += self._step_seconds
            self.stepped(of)
            if of != self.alive:
                self.kept.append(handle)
                return
        try:
            handle.context.run(callback, *handle.args)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self.failed(f"{callback!r} failed", error)

    def _is_over(self, handle: Handle) -> bool:
        return handle.callback is None or handle.context.get(generation, WORLD) not in (WORLD, self.alive)

    def time(self) -> float:
        return self._now

    def outside(
        self, seconds: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """Call it at a moment that the seed chooses, not before `seconds` have passed."""
        handle = Handle(callback, args, _WORLDS.copy() if context is None else context)
        self._order += 1
        heapq.heappush(self._outer, (self._now + seconds, self._order, handle))
        return handle

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = Handle(callback, args, copy_context() if context is None else context)
        if not self.closed:
            self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = Handle(callback, args, copy_context() if context is None else context)
        handle.time = when
        self._order += 1
        heapq.heappush(self._timers, (when, self._order, handle))
        return handle

    def create_future(self) -> Any:
        return Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> Any:
        task = Task(coro, loop=self, name=name, context=context)
        self.kept.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """A thread: the seed chooses when it does its work, and when its end is heard of."""
        future = self.create_future()
        context = copy_context()

        def run() -> None:
            try:
                result = func(*args)
            except Exception as error:
                self.outside(self.thread_seconds(), finish, future.set_exception, error, context=context)
            else:
                self.outside(self.thread_seconds(), finish, future.set_result, result, context=context)

        def finish(tell: Callable[[Any], None], value: object) -> None:
            if not future.done():
                tell(value)

        self.outside(self.thread_seconds(), run, context=context)
        return future

    def thread_seconds(self) -> float:
        drawn = self._chance()
        return 0.0 if drawn < 0.7 else drawn * 0.1 if drawn < 0.97 else drawn * 5

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
        self._readers[fd] = Handle(callback, args, copy_context())

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def readable(self, fd: int) -> None:
        """Whoever reads `fd` is called."""
        if (handle := self._readers.get(fd)) is not None:
            self.outside(
                0.0,
                lambda: handle is self._readers.get(fd) and cast("Any", handle.callback)(*handle.args),
                context=handle.context,
            )

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.closed

    def is_closed(self) -> bool:
        return self.closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.closed and generation.get() in (WORLD, self.alive):
            self.failed(str(context.get("message")), context.get("exception"))


_WORLDS = Context()
