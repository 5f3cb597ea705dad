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
from typing import Any, Generic, TypeVar

from paddock.errors import InvalidState

R = TypeVar("R")


class LoopThread:
    """Daemon: it never keeps a program from ending."""

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(
        self,
        coroutine: Coroutine[Any, Any, R],
        *,
        finish: bool = False,
        discard: Callable[[R], Coroutine[Any, Any, object] | None] = lambda _: None,
    ) -> R:
        """Blocks until done; Ctrl-C cancels it. A second Ctrl-C does not wait for that.

        With `finish` it is left to run on instead. `discard` undoes a result that came after all.
        """
        done = threading.Lock()
        done.acquire()
        call = _Call(self._loop, self._tasks, coroutine, done.release)
        self._hand_over(call)
        try:
            done.acquire()
        except BaseException:
            if not finish:
                self._loop.call_soon_threadsafe(call.cancel)
                done.acquire()
                call.discard(discard)
            raise
        return call.result()

    async def arun(
        self,
        coroutine: Coroutine[Any, Any, R],
        *,
        finish: bool = False,
        discard: Callable[[R], Coroutine[Any, Any, object] | None] = lambda _: None,
    ) -> R:
        """The same for a coroutine on another loop."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # that loop was closed meanwhile: nobody waits
                loop.call_soon_threadsafe(lambda: done.done() or done.set_result(None))

        call = _Call(self._loop, self._tasks, coroutine, wake)
        self._hand_over(call)
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            if not finish:
                self._loop.call_soon_threadsafe(call.cancel)
                await done
                call.discard(discard)
            raise
        return call.result()

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
            for task in self._tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _hand_over(self, call: _Call[Any]) -> None:
        problem = None
        if os.getpid() != self._pid:
            problem = "it was opened before this process was forked"
        elif threading.get_ident() == self._thread.ident:
            problem = "a blocking call from paddock's own thread would wait for itself"
        try:
            if problem is None:
                self._loop.call_soon_threadsafe(call.start)
        except RuntimeError:
            problem = "paddock was closed in this process"
        if problem is not None:
            call.coroutine.close()
            raise InvalidState(problem)


class _Call(Generic[R]):
    """One coroutine on its way. `wake` is called on the loop's thread, once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tasks: set[asyncio.Task[Any]],
        coroutine: Coroutine[Any, Any, R],
        wake: Callable[[], None],
    ) -> None:
        self.coroutine = coroutine
        self._loop = loop
        self._tasks = tasks
        self._wake = wake
        self._task: asyncio.Task[R] | None = None

    def start(self) -> None:
        self._task = self._loop.create_task(self.coroutine)
        self._tasks.add(self._task)
        self._task.add_done_callback(self._finished)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def result(self) -> R:
        assert self._task is not None
        try:
            return self._task.result()
        except asyncio.CancelledError:  # not the caller's doing, so not the caller's to see
            raise InvalidState("paddock was closed in this process") from None

    def discard(self, undo: Callable[[R], Coroutine[Any, Any, object] | None]) -> None:
        task = self._task
        assert task is not None
        if task.cancelled() or task.exception() is not None:
            return
        coroutine = undo(task.result())
        if coroutine is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_Call(self._loop, self._tasks, coroutine, lambda: None).start)

    def _finished(self, task: asyncio.Task[R]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen, even if the caller is gone
        self._wake()
