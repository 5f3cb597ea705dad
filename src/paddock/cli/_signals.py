"""Work on an event loop that a signal ends, with all that it has to take back."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import TypeVar

R = TypeVar("R")


def run_until_signal(work: Coroutine[None, None, R]) -> R:
    """SystemExit with 128 + the signal's number, after `work` was cancelled and has ended."""
    received: list[int] = []
    try:
        return asyncio.run(_run(work, received))
    except asyncio.CancelledError:
        raise SystemExit(128 + received[0]) from None


async def _run(work: Coroutine[None, None, R], received: list[int]) -> R:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def end(number: int) -> None:
        received.append(number)
        task.cancel()

    # The loop's own handlers: one of Python's runs only when the loop wakes up, which a signal that comes just before
    # it goes to sleep does not bring about.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end, number)
    return await work
