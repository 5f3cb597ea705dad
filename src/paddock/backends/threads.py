"""Work beside its caller: in a thread, which continues when the caller is cancelled, or in a task.

`asyncio.to_thread` has few threads, shared by the whole program. Work that waits for another thread or for the loop
could block all of them: it gets a separate thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class TaskSet(set[asyncio.Task[Any]]):
    """Tasks until they end: the loop keeps only a weak reference."""

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    async def cancel(self) -> None:
        """Cancel all, and wait for their end."""
        for task in self:
            task.cancel()
        await asyncio.gather(*self, return_exceptions=True)


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in a thread, to its end: its effect is never partial. A cancellation of the caller is raised
    after that."""
    call = partial(copy_context().run, function, *args, **kwargs)
    return await end_of(asyncio.get_running_loop().run_in_executor(None, call))


async def end_of(work: asyncio.Future[T]) -> T:
    """Wait for the end of `work`. A cancellation of the caller is raised after that, not before."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError as error:
        cancelled = error
    while not work.done():
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError as error:
            cancelled = error
    if not work.cancelled():
        work.exception()  # seen
    raise cancelled


async def in_its_own_thread(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """For what waits for others: it takes no thread from them."""
    coming: concurrent.futures.Future[T] = concurrent.futures.Future()
    coming.set_running_or_notify_cancel()  # a caller that leaves doesn't cancel it

    def run() -> None:
        try:
            coming.set_result(work(*arguments, **named))
        except BaseException as error:
            coming.set_exception(error)

    threading.Thread(target=run, name=f"paddock {work.__name__}", daemon=True).start()
    return await asyncio.wrap_future(coming)
