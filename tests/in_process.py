"""A daemon on a thread of the test's own process, for tests that look into it or do what no client can ask for."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from paddock.client import default_transport, stop_daemon
from paddock.daemon.main._watchdog import Watchdog
from paddock.daemon.main.service import Service
from paddock.daemon.main.start import Daemon

R = TypeVar("R")


class InProcess:
    """`service` is the daemon's; `run` has something done on its loop; `transport` goes through its socket."""

    def __init__(self, state_dir: Path, daemon: Daemon, loop: asyncio.AbstractEventLoop) -> None:
        self._daemon, self._loop = daemon, loop
        self.transport = default_transport(state_dir)

    @property
    def service(self) -> Service:
        return self._daemon.service

    def run(self, function: Callable[..., Coroutine[Any, Any, R]], *arguments: Any) -> R:
        return asyncio.run_coroutine_threadsafe(function(*arguments), self._loop).result()


@contextmanager
def in_process(state_dir: Path) -> Generator[InProcess]:
    """In place of the one that may run there, which leaves first. The next call after the block starts another."""
    state_dir.mkdir(mode=0o700, exist_ok=True)
    stop_daemon(state_dir, ends_sessions=False)
    lock = os.open(state_dir / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    reading, writing = os.pipe2(os.O_CLOEXEC)
    started: list[tuple[Daemon, asyncio.AbstractEventLoop]] = []

    async def run(watchdog: Watchdog) -> None:
        daemon = Daemon(state_dir, lock, watchdog)
        started.append((daemon, asyncio.get_running_loop()))
        await daemon.run(writing)

    def serve() -> None:
        watchdog = Watchdog()
        with asyncio.Runner(loop_factory=watchdog.new_loop) as runner:
            runner.run(run(watchdog))

    thread = threading.Thread(target=serve, daemon=True)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread.start()
        assert os.read(reading, 1024) == b"{}"
        ((daemon, loop),) = started
        try:
            yield InProcess(state_dir, daemon, loop)
        finally:
            loop.call_soon_threadsafe(daemon.leave)
            thread.join()
    finally:
        os.close(reading)
        os.close(lock)
