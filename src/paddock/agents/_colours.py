"""Several things at once, and one within its time, in two colours, so that the generator has only names to change.

The asynchronous side cancels. A thread cannot be cancelled: the synchronous side kills the sandboxes that it works
with, which ends whatever it waits for there.
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
"""What a caller's function gives back on the asynchronous side."""
Now: TypeAlias = Annotated[T, "at once"]
"""The same on the synchronous side: the value itself."""
_Ended: TypeAlias = tuple[int, T | None, BaseException | None]
"""Which call has ended, and its result or what it raised."""

_LINGER_SECONDS = 2.0
"""For threads whose sandboxes are dead; one that waits for somebody else's answer is left to its end."""
_TURN_SECONDS = 0.5
"""So often a waiting thread looks whether a signal has come."""


class _Kills(Protocol):
    def kill(self) -> Any: ...


class AsyncScope:
    """Of things done at once. To be cancelled is enough of an end on this side."""

    def hold(self, sandbox: object) -> None: ...


class Scope:
    """Of things done at once: what they hold is killed when nobody wants their results any more."""

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
    """At most `limit` at once, in order. When `enough` likes a result the others are ended: theirs is None.

    The first that raises ends the others, and that is what is raised.
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
    """Make the call on a thread of its own."""

    def run() -> None:
        try:
            ended.put((index, call(), None))
        except BaseException as failure:
            ended.put((index, None, failure))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _next(ended: SimpleQueue[_Ended[T]], until: float | None) -> tuple[int, T]:
    """Wait for the next call that ends, and raise what it has raised. TimeoutError."""
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
    """TimeoutError after so many seconds; the call is cancelled."""
    async with asyncio.timeout(seconds):
        return await call(*args, **kwargs)


def within(seconds: float | None, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the same; the call is left to its end on a thread of its own, and its result dropped."""
    ended = SimpleQueue[_Ended[T]]()
    until = None if seconds is None else time.monotonic() + seconds
    _begin(0, partial(call, *args, **kwargs), ended)
    return _next(ended, until)[1]


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """One of a group whose members are of groups themselves, perhaps."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error  # pyright: ignore[reportUnknownArgumentType]
