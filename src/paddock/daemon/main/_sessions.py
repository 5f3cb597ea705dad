"""A session is a client process: its connections, and the handles that it has open."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable

from paddock.daemon.clock import boot_id
from paddock.errors import DaemonLostError, InvalidStateError
from paddock.linux import pidfd
from paddock.linux.proc import start_time
from paddock.model.caller import SessionProcess

from ._handles import Opened
from ._recent_requests import RETURN_SECONDS


class Session:
    def __init__(self, token: str, pid: int, ended: Callable[[Session], None]) -> None:
        self.token, self.pid = token, pid
        self.connections: set[object] = set()
        self.handles: dict[int, Opened] = {}
        self.has_asked = False
        """Whether it has sent a request other than one for the daemon's status."""
        self._ended: Callable[[Session], None] | None = ended
        self._first = self._number = int.from_bytes(os.urandom(4)) << 16
        """Numbers of handles. Those of an earlier daemon differ."""
        self._return_timer: asyncio.TimerHandle | None = None
        self._process = self._open_pidfd()
        started = ""
        with contextlib.suppress(OSError):  # while the pidfd is open: both belong to the same process
            started = str(start_time(pid))
        self.process = SessionProcess(token=token, pid=pid, start_time=started, boot_id=boot_id())

    def next_handle(self) -> int:
        self._number += 1
        return self._number

    def handle(self, number: int) -> Opened:
        opened = self.handles.get(number)
        if opened is not None:
            return opened
        if not self._first < number <= self._number:
            raise DaemonLostError("the daemon has restarted since")
        raise InvalidStateError("the handle was closed", hint="wait first")

    def disconnected(self, connection: object, *, is_lost: bool) -> None:
        """Note the end of a connection. `is_lost`: before its requests were answered. A living client then comes back
        for the answers."""
        self.connections.discard(connection)
        if self.connections:
            return
        if is_lost and self._process is not None:
            if self._return_timer is not None:
                self._return_timer.cancel()
            self._return_timer = asyncio.get_running_loop().call_later(RETURN_SECONDS, self._end_if_alone)
        elif self._return_timer is None:
            self.end()

    def _end_if_alone(self) -> None:
        self._return_timer = None
        if not self.connections:
            self.end()

    def end(self) -> None:
        """End the session: the process has died, or closed its last connection. Idempotent."""
        if self._process is not None:
            asyncio.get_running_loop().remove_reader(self._process)
            os.close(self._process)
            self._process = None
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(self)

    def _open_pidfd(self) -> int | None:
        """Return a pidfd of the client. A forked child may keep the connection open after the process has died: the
        pidfd shows that (pidfd_open(2)). A process in another pid namespace appears as 0, and only the end of its
        connections shows its death."""
        if self.pid <= 0:
            return None
        try:
            descriptor = pidfd.open(self.pid)
        except OSError:
            return None
        asyncio.get_running_loop().add_reader(descriptor, self.end)
        return descriptor


async def all_of(work: Iterable[Awaitable[object]]) -> list[BaseException]:
    """Await all of them, and return their errors."""
    results = await asyncio.gather(*work, return_exceptions=True)
    return [result for result in results if isinstance(result, BaseException)]
