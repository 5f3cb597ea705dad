"""An event loop on a thread of its own, and the two ways into it: blocking, and from another event loop.

This is the only place where the synchronous and the asynchronous world meet. A caller that is interrupted
or cancelled cancels what it asked for, waits for that to end, and gives back what came too late.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, TypeVarTuple

from paddock.errors import InvalidState

R = TypeVar("R")
Arguments = TypeVarTuple("Arguments")

_SIGNAL_SECONDS = 0.5

Undo = Callable[[R], Coroutine[Any, Any, object] | None]


class LoopThread:
    """Daemon: it never keeps a program from ending."""

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._calls: set[_Call[Any]] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._loop.close()
            raise

    def run(
        self,
        function: Callable[[*Arguments], Coroutine[Any, Any, R]],
        *arguments: *Arguments,
        finish: bool = False,
        discard: Undo[R] = lambda _: None,
    ) -> R:
        """Blocks until done; Ctrl-C cancels it. A second Ctrl-C does not wait for that.

        With `finish` it is left to run on instead. `discard` undoes a result that came after all.
        """
        done = threading.Lock()
        done.acquire()
        call = _Call(self, function, arguments, done.release)
        self._refuse_misuse()
        try:
            self._calls.add(call)
            self._post(call.start)
            _wait(done, call)
        except BaseException:
            # A signal may have come anywhere in there; what follows is right even if the call was never posted.
            if finish:
                self._post(call.start)
            else:
                self._post(call.cancel)
                _wait(done, call)
                call.discard(discard)
            raise
        return call.result()

    async def arun(
        self,
        function: Callable[[*Arguments], Coroutine[Any, Any, R]],
        *arguments: *Arguments,
        finish: bool = False,
        discard: Undo[R] = lambda _: None,
    ) -> R:
        """The same for a coroutine on another loop."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # that loop was closed meanwhile: nobody waits
                loop.call_soon_threadsafe(lambda: done.done() or done.set_result(None))

        call = _Call(self, function, arguments, wake)
        self._refuse_misuse()
        self._calls.add(call)
        self._post(call.start)
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            if not finish:
                self._post(call.cancel)
                await done
                call.discard(discard)
            raise
        return call.result()

    def spawn(self, coroutine: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """A task that is referenced until it ends and whose failure is nobody's surprise. On the loop's thread only."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def give_up(self, function: Callable[[*Arguments], Coroutine[Any, Any, object]], *arguments: *Arguments) -> None:
        """Has it run sometime, if the loop still runs. For finalizers: it neither waits nor fails."""
        if self._pid == os.getpid():
            with contextlib.suppress(InvalidState):
                self._post(lambda: self.spawn(function(*arguments)))

    def stop(self) -> None:
        """Cancels what runs, then ends the thread. Idempotent; not for the thread itself."""
        if self._pid != os.getpid() or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._cancel_all()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._cancel_all()
        finally:
            self._loop.close()
            # A call is noted before it is posted: either it is seen here, or its caller finds the loop closed.
            for call in tuple(self._calls):
                call.refuse()

    def _cancel_all(self) -> None:
        while self._tasks:  # what comes meanwhile too
            for task in self._tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))

    def forget(self, call: _Call[Any]) -> None:
        """It is over."""
        self._calls.discard(call)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen, even if the caller is gone

    def _post(self, callback: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            raise InvalidState("paddock was closed in this process") from None

    def _refuse_misuse(self) -> None:
        if os.getpid() != self._pid:
            raise InvalidState("it was opened before this process was forked", hint="open it again in the child")
        if threading.get_ident() == self._thread.ident:
            raise InvalidState("a call from paddock's own thread would wait for itself")


def _wait(done: threading.Lock, call: _Call[Any]) -> None:
    """Returns when the call is over, however often it is called: `done` alone can be had only once.

    A signal that comes just before the thread blocks does not wake it: its Python handler runs at the next turn.
    """
    while not call.over:
        done.acquire(timeout=_SIGNAL_SECONDS)


class _Call(Generic[R]):
    """One coroutine on its way. `wake` is called on the loop's thread, once."""

    def __init__(
        self,
        thread: LoopThread,
        function: Callable[[*Arguments], Coroutine[Any, Any, R]],
        arguments: tuple[*Arguments],
        wake: Callable[[], None],
    ) -> None:
        self._thread = thread
        self._make: Callable[[], Coroutine[Any, Any, R]] | None = lambda: function(*arguments)
        self._wake = wake
        self.over = False
        self._task: asyncio.Task[R] | None = None

    def start(self) -> None:
        """Once; not after `cancel`."""
        make, self._make = self._make, None
        if make is not None:
            self._task = self._thread.spawn(make())
            self._task.add_done_callback(lambda _: self._finish())

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif self._make is not None:
            self._make = None
            self._finish()

    def refuse(self) -> None:
        """It came when the loop was at its end, and will not be done."""
        self._make = None
        self._finish()

    def _finish(self) -> None:
        self._thread.forget(self)
        self.over = True
        self._wake()

    def result(self) -> R:
        try:
            if self._task is not None:
                return self._task.result()
        except (asyncio.CancelledError, asyncio.InvalidStateError):
            pass  # not the caller's doing, so not the caller's to see
        raise InvalidState("paddock was closed in this process")

    def discard(self, undo: Undo[R]) -> None:
        """For whoever was woken and does not want the result."""
        task = self._task
        if task is None or task.cancelled() or task.exception() is not None:
            return
        result = task.result()
        self._thread.give_up(_undoing, undo, result)


async def _undoing(undo: Undo[R], result: R) -> None:
    coroutine = undo(result)
    if coroutine is not None:
        await coroutine
