"""A session is a client process: its connections, the handles it has open, and the sandboxes that end with it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from paddock.errors import DaemonLostError, InvalidStateError
from paddock.linux import pidfd
from paddock.linux.descriptors import closing
from paddock.linux.proc import start_time
from paddock.linux.whole import write_whole
from paddock.model import SandboxId

from ._handles import Opened
from ._recent_requests import RETURN_SECONDS


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a session on disk for the next daemon: its process, and what ends with it."""

    token: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    pid: int
    start_time: str
    boot_id: str
    sandboxes: tuple[SandboxId, ...] = ()


class Session:
    def __init__(self, token: str, pid: int, ended: Callable[[Session], None]) -> None:
        self.token, self.pid = token, pid
        self.connections: set[object] = set()
        self.handles: dict[int, Opened] = {}
        self.sandboxes: set[SandboxId] = set()
        self.has_asked = False
        """Whether it has sent a request other than one for the daemon's status."""
        self._ended: Callable[[Session], None] | None = ended
        self._first = self._number = int.from_bytes(os.urandom(4)) << 16
        """Numbers of handles. Those of an earlier daemon differ."""
        self._return_timer: asyncio.TimerHandle | None = None
        self._process = self._open_pidfd()
        self.start_time: str | None = None
        with contextlib.suppress(OSError):
            self.start_time = str(start_time(pid))
        """Read while the pidfd is open: with the expected time, both belong to the same process."""

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


class SessionFiles:
    """One file for each session that has sandboxes: a `SessionRow`, then a line for each sandbox that came later. The
    daemon is their only writer."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._opening = asyncio.Lock()
        self._files: dict[str, int] = {}

    async def add(self, session: Session, sandbox: SandboxId, boot_id: str) -> None:
        """Write down that `sandbox` ends with `session`. OSError."""
        session.sandboxes.add(sandbox)
        async with self._opening:
            file = self._files.get(session.token)
            if file is None:
                self._files[session.token] = await asyncio.to_thread(self._begin, session, boot_id)
                return
        line = f"{sandbox}\n".encode()
        if os.write(file, line) < len(line):
            os.close(self._files.pop(session.token))  # the next line begins the file anew
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _begin(self, session: Session, boot_id: str) -> int:
        row = SessionRow(
            token=session.token,
            pid=session.pid,
            start_time=session.start_time or "",
            boot_id=boot_id,
            sandboxes=tuple(session.sandboxes),
        )
        self._directory.mkdir(mode=0o700, exist_ok=True)
        name = f"{session.token}.json"
        with closing(os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
            write_whole(directory, name, msgspec.json.encode(row) + b"\n")
            return os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, dir_fd=directory)

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def forget(self, token: str) -> None:
        if (file := self._files.pop(token, None)) is not None:
            os.close(file)
        (self._directory / f"{token}.json").unlink(missing_ok=True)

    def read(self) -> Iterable[SessionRow]:
        for path in sorted(self._directory.glob("*")):
            if path.suffix == ".json":
                first, *later = path.read_bytes().split(b"\n")
                with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):  # not one of our files
                    row = msgspec.json.decode(first, type=SessionRow)
                    added = (SandboxId(line.decode()) for line in later[:-1])  # the last line may be incomplete
                    if row.token == path.stem:
                        yield msgspec.structs.replace(row, sandboxes=(*row.sandboxes, *added))
            else:
                path.unlink(missing_ok=True)


async def all_of(work: Iterable[Awaitable[object]]) -> list[BaseException]:
    """Await all of them, and return their errors."""
    results = await asyncio.gather(*work, return_exceptions=True)
    return [result for result in results if isinstance(result, BaseException)]
