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
from typing import Annotated, Any, Generic, ParamSpec, Protocol, TypeAlias, TypeVar

from paddock.errors import InvalidState, PaddockError

P = ParamSpec("P")
T = TypeVar("T")

Later: TypeAlias = Awaitable[T]
"""What a caller's function gives back on the asynchronous side."""
Now: TypeAlias = Annotated[T, "at once"]
"""The same on the synchronous side: the value itself."""

_LINGER_SECONDS = 5.0
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
        """Kills it and raises InvalidState if it comes too late."""
        with self._lock:
            self._held.append(sandbox)
            over = self.over
        if over:
            _kill(sandbox)
            raise InvalidState("its result is not wanted any more")

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
    """The same on threads."""
    crew = _Crew(calls, enough)
    try:
        crew.start(min(limit, len(calls)))
        crew.wait()
    finally:
        crew.end()
    return crew.results


class _Crew(Generic[T]):
    def __init__(self, calls: Sequence[Callable[[Scope], T]], enough: Callable[[T], bool]) -> None:
        self.results: list[T | None] = [None] * len(calls)
        self._waiting = iter(enumerate(calls))
        self._enough = enough
        self._scope = Scope()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._working = 0
        self._over = False
        self._failure: BaseException | None = None

    def start(self, count: int) -> None:
        self._working = count
        for _ in range(count):
            thread = threading.Thread(target=self._work, daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait(self) -> None:
        with self._changed:
            while self._working and not self._over:
                self._changed.wait(_TURN_SECONDS)
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """What still works is ended. When all have come to their own end, what they leave is the caller's."""
        with self._changed:
            if not self._working and not self._over:
                return
            self._over = True
        self._scope.end()
        until = time.monotonic() + _LINGER_SECONDS
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))

    def _work(self) -> None:
        try:
            while (taken := self._take()) is not None:
                index, call = taken
                result = call(self._scope)
                with self._changed:
                    if self._over:
                        return
                    self.results[index] = result
                    if self._enough(result):
                        self._over = True
                        return
        except BaseException as failure:
            with self._changed:
                if not self._over:
                    self._over, self._failure = True, failure
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    def _take(self) -> tuple[int, Callable[[Scope], T]] | None:
        with self._changed:
            return None if self._over else next(self._waiting, None)


async def awithin(seconds: float | None, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """TimeoutError after so many seconds; the call is cancelled."""
    async with asyncio.timeout(seconds):
        return await call(*args, **kwargs)


def within(seconds: float | None, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The same; the call is left to its end on a thread of its own, and its result dropped."""
    outcome: list[T] = []
    failure: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            outcome.append(call(*args, **kwargs))
        except BaseException as error:
            failure.append(error)
        finally:
            done.set()

    threading.Thread(target=run, daemon=True).start()
    until = None if seconds is None else time.monotonic() + seconds
    while not done.wait(_TURN_SECONDS if until is None else min(_TURN_SECONDS, max(0.0, until - time.monotonic()))):
        if until is not None and time.monotonic() >= until:
            raise TimeoutError
    if failure:
        raise failure[0]
    return outcome[0]


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """One of a group whose members are of groups themselves, perhaps."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error  # pyright: ignore[reportUnknownArgumentType]
