"""Concurrent calls and calls with a deadline, in an asynchronous and a synchronous form.

The generator only swaps names.

The asynchronous side cancels. Python can't cancel a thread, so the synchronous side kills the sandboxes of its threads.
That ends their waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Annotated, Any, ParamSpec, Protocol, TypeAlias, TypeVar, cast

from paddock.errors import InvalidStateError, PaddockError

P = ParamSpec("P")
T = TypeVar("T")

Later: TypeAlias = Awaitable[T]
"""The result of a caller's function on the asynchronous side."""
Now: TypeAlias = Annotated[T, "at once"]
"""The same on the synchronous side: the value itself."""
_Ended: TypeAlias = tuple[int, T | None, BaseException | None]
"""The index of a call that has ended, and its result or its exception."""

_LINGER_SECONDS = 2.0
"""Time for the threads of dead sandboxes. A thread that waits for something else continues in the background."""
_TURN_SECONDS = 0.5
"""Seconds between two checks of a waiting thread for signals."""


class _Kills(Protocol):
    def kill(self) -> Any: ...


class AsyncScope:
    """The scope of concurrent calls. On this side a cancellation suffices to end them."""

    def hold(self, sandbox: object) -> None: ...


class Scope:
    """The scope of concurrent calls: it kills their sandboxes when the results aren't needed any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[_Kills] = []
        self.over = False

    def hold(self, sandbox: _Kills) -> None:
        """Kills it and raises InvalidStateError if it comes too late."""
        with self._lock:
            self._held.append(sandbox)
            over = self.over
        if over:
            _kill(sandbox)
            raise InvalidStateError("its result is not wanted any more")

    def end(self) -> None:
        with self._lock:
            self.over = True
            held, self._held = self._held, []
        for sandbox in held:
            _kill(sandbox)


def _kill(sandbox: _Kills) -> None:
    with contextlib.suppress(PaddockError):
        sandbox.kill()


async def agather(
    limit: int,
    calls: Sequence[Callable[[AsyncScope], Awaitable[T]]],
    enough: Callable[[T], bool] = lambda _: False,
) -> list[T | None]:
    """Run the calls, at most `limit` at once, in order.

    When `enough` accepts a result, end the others with the result None.

    The first exception ends the others, and the function raises it.
    """
    results: list[T | None] = [None] * len(calls)
    waiting = iter(enumerate(calls))
    workers: list[asyncio.Task[None]] = []

    async def work() -> None:
        for index, call in waiting:
            results[index] = result = await call(AsyncScope())
            if enough(result):
                for worker in workers:
                    if worker is not asyncio.current_task():
                        worker.cancel()
                return

    try:
        async with asyncio.TaskGroup() as group:
            workers += [group.create_task(work()) for _ in range(min(limit, len(calls)))]
    except BaseExceptionGroup as failures:
        raise _first(failures) from None
    return results


def gather(
    limit: int,
    calls: Sequence[Callable[[Scope], T]],
    enough: Callable[[T], bool] = lambda _: False,
) -> list[T | None]:
    """Return the same on threads."""
    results: list[T | None] = [None] * len(calls)
    scope, ended, threads = Scope(), SimpleQueue[_Ended[T]](), list[threading.Thread]()
    waiting = iter(enumerate(calls))
    working = 0
    try:
        while True:
            for index, call in islice(waiting, limit - working):
                threads.append(_begin(index, partial(call, scope), ended))
                working += 1
            if not working:
                return results  # what they leave is the caller's
            index, result = _next(ended, None)
            working -= 1
            results[index] = result
            if enough(result):
                return results
    finally:
        if working:
            scope.end()
            until = time.monotonic() + _LINGER_SECONDS
            for thread in threads:
                thread.join(max(0.0, until - time.monotonic()))


def _begin(index: int, call: Callable[[], T], ended: SimpleQueue[_Ended[T]]) -> threading.Thread:
    """Make the call on a new thread."""

    def run() -> None:
        try:
            ended.put((index, call(), None))
        except BaseException as failure:
            ended.put((index, None, failure))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _next(ended: SimpleQueue[_Ended[T]], until: float | None) -> tuple[int, T]:
    """Wait for the next call that ends, and return its result. Raises its exception, and TimeoutError."""
    while True:
        try:
            index, result, failure = ended.get(
                timeout=_TURN_SECONDS if until is None else min(_TURN_SECONDS, max(0.0, until - time.monotonic()))
            )
        except Empty:
            if until is not None and time.monotonic() >= until:
                raise TimeoutError from None
        else:
            if failure is not None:
                raise failure
            return index, cast("T", result)


async def awithin(seconds: float | None, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Make the call. After so many seconds, cancel it and raise TimeoutError."""
    async with asyncio.timeout(seconds):
        return await call(*args, **kwargs)


def within(seconds: float | None, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Make the call.

    After so many seconds, raise TimeoutError. The call continues on its thread, without a use for its result.
    """
    ended = SimpleQueue[_Ended[T]]()
    until = None if seconds is None else time.monotonic() + seconds
    _begin(0, partial(call, *args, **kwargs), ended)
    return _next(ended, until)[1]


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first exception of a group. A group may contain groups."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error  # pyright: ignore[reportUnknownArgumentType]
