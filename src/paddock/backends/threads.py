"""Work in a thread, which continues when its caller is cancelled.

`asyncio.to_thread` has few threads, shared by the whole program. Work that waits for another thread or for the loop
could block all of them: it gets a separate thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def to_its_end(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Run `work` to its end, even if the caller is cancelled: when this raises, its result exists or never will."""
    doing = asyncio.ensure_future(asyncio.to_thread(partial(work, *arguments, **named)))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait((doing,))
        raise


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
