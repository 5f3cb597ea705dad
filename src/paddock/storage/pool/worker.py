"""Work on trees in a separate process (`_jobs`), where the daemon can't or shouldn't do it.

It can't if paddock is an ordinary user and the files belong to the user's subordinate ids. The process has entered a
user namespace that maps them. It shouldn't where a stranger wrote the input.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from paddock.errors import InternalError, NotConfiguredError
from paddock.linux.subordinate_ids import SubordinateIds
from paddock.model import codec
from paddock.storage.pool.config import PoolConfig
from paddock.supervisor.layout import TREE_ID_BASE
from paddock.wire import send_some

T = TypeVar("T")

SECONDS = 3600
_LATE_SECONDS = 10.0
_BOOTSTRAP = (
    "import sys,json;o=json.loads(sys.argv[1]);sys.path[:]=o.pop('path');"
    "from paddock.storage.pool._jobs import serve;serve(**o)"
)
_MOST_BYTES = 1 << 20


class Worker:
    """The process that works on the trees of a pool.

    Several threads can use it at once.

    A file's owner on disk is `base` plus the id in the tree. None: all files have our own id. With `ids`, another
    process does all work, and in its namespace `base` is 0.
    """

    def __init__(self, base: int | None, ids: SubordinateIds | None = None) -> None:
        self.base = base
        self._ids = ids
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def do(self, work: Callable[..., T], fds: tuple[int, ...], *arguments: object) -> T:
        """Run `work(*fds, *arguments)` in a process with the right to do it, and return or raise its result.

        See `confined`.
        """
        if self._ids is None:
            return work(*fds, *arguments)
        return self.confined(work, fds, *arguments)

    def confined(self, work: Callable[..., T], fds: tuple[int, ...], *arguments: object, seconds: int = SECONDS) -> T:
        """Do the work like `do`, but always in another process that reaches only `fds`: for hostile input.

        `work` is a function of a module. Arguments and result are JSON. Raises ResourceExhaustedError if it takes too
        much time or memory, InternalError if it dies, and NotConfiguredError if the kernel refuses the subordinate ids.
        """
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                self._send(f"{seconds} {work.__module__}:{work.__qualname__}".encode(), [theirs.fileno(), *fds])
            answer = bytearray()
            ours.settimeout(seconds + _LATE_SECONDS)
            with suppress(ConnectionError):  # it died: what it or the worker said is still there to be read
                ours.sendall(json.dumps(arguments).encode())
                ours.shutdown(socket.SHUT_WR)
            try:
                while not answer.endswith(b"\n") and len(answer) <= _MOST_BYTES and (piece := ours.recv(1 << 16)):
                    answer += piece
            except TimeoutError:  # the worker hangs: it ends a job in time. The next job starts another one
                self.close()
            except ConnectionError:
                pass
        return _result(bytes(answer))

    def close(self) -> None:
        """End the process, with all that it does."""
        with self._lock:
            self._end()

    def _send(self, message: bytes, fds: list[int]) -> None:
        with self._lock:
            try:
                send_some(self._running(), message, fds)
            except ConnectionError:  # it was idle for long enough, or was killed: this job has not begun
                self._end()
                send_some(self._running(), message, fds)

    def _running(self) -> socket.socket:
        if self._control is not None:
            return self._control
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                options = {"path": [*filter(os.path.isabs, sys.path)], "control": theirs.fileno(), "ids": self._ids}
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, json.dumps(options)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env={},
                    cwd="/",
                    start_new_session=True,
                )
            answer = self._control.recv(_MOST_BYTES)
            if not answer:
                raise InternalError("the process that works on trees died while it started", hint="paddock daemon logs")
            if why := json.loads(answer):
                raise NotConfiguredError(
                    f"your subordinate ids, to which trees here belong, cannot be mapped: {why}",
                    hint="paddock doctor; /etc/subuid and /etc/subgid must be as they were",
                )
        except BaseException:
            self._end()
            raise
        return self._control

    def _end(self) -> None:
        control, self._control = self._control, None
        process, self._process = self._process, None
        if control is not None:
            control.close()
        if process is not None:
            process.kill()  # at the socket's end it leaves by itself, unless it hangs
            process.wait()


def worker_for(config: PoolConfig) -> Worker:
    """Return the worker for the trees of a pool."""
    if os.geteuid() == 0:
        return Worker(TREE_ID_BASE)
    return Worker(None) if config.subordinate_ids is None else Worker(0, config.subordinate_ids)


def _result(data: bytes) -> Any:
    try:
        answer: dict[str, Any] = json.loads(data)
    except ValueError:
        raise InternalError("the process that works on trees died before it answered", hint="try again") from None
    if "value" in answer:
        return answer["value"]
    raise codec.decode_error(data)
