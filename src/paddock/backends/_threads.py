"""Work in a thread, which goes on when whoever waits for it is cancelled.

The threads that `asyncio.to_thread` has are few, and all of this program's. What waits in one for something that itself
needs one (a lock whose holder does; something of the loop's own) would keep it from ever coming: that has its own.
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
    """Nobody leaves it alone half-way: what it makes is there, or will not be, when this raises."""
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
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(tell, done)

    threading.Thread(target=run, name=f"paddock {work.__name__}", daemon=True).start()
    return await coming
