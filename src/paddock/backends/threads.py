"""Work in a thread, which continues when its caller is cancelled.

`asyncio.to_thread` has few threads, shared by the whole program. Work that waits for another thread or for the loop
could block all of them: it gets a separate thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
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
    loop = asyncio.get_running_loop()
    coming: asyncio.Future[T] = loop.create_future()

    def tell(how: Callable[[], None]) -> None:
        if not coming.done():
            how()

    def run() -> None:
        try:
            done = partial(coming.set_result, work(*arguments, **named))
        except BaseException as error:
            done = partial(coming.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed, and no caller waits
            loop.call_soon_threadsafe(tell, done)

    threading.Thread(target=run, name=f"paddock {work.__name__}", daemon=True).start()
    return await coming
