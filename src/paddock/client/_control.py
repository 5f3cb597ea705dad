"""Requests about the daemon itself. They never start one."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from paddock.errors import DaemonLostError, DaemonUnavailableError
from paddock.linux import pidfd
from paddock.model import codec

from . import _daemon
from ._session import Session
from ._sync.daemon import DaemonTransport

_LEAVE_SECONDS = 60.0
_LOOK_SECONDS = 0.2


def daemon_status(state_dir: Path) -> codec.Status | None:
    """Return the daemon's status, or None without a daemon."""
    session = Session(state_dir, _existing, any_protocol=True)
    try:
        return codec.decode(DaemonTransport(session).control("status"), codec.Status)
    except _daemon.NoDaemon:
        return None
    finally:
        session.close()


def stop_daemon(state_dir: Path, *, ends_sessions: bool = True) -> bool:
    """Have the daemon leave, and wait until its process has ended. Whether there was one.

    With `ends_sessions` the sandboxes that are not persistent end with it. Without, the next daemon takes over the
    sessions of living programs. Commands in the background and persistent sandboxes go on in both cases.
    """
    with contextlib.ExitStack() as processes:
        leaving: list[int] = []

        def connect(state_dir: str) -> socket.socket:
            peer = _existing(state_dir)
            with contextlib.suppress(OSError):  # it has ended, or its pid namespace is not below this one
                leaving.append(pidfd.open(_daemon.listener(peer)[0]))
                processes.callback(os.close, leaving[-1])
            return peer

        session = Session(state_dir, connect, any_protocol=True)
        try:
            DaemonTransport(session).control("stop" if ends_sessions else "restart")
        except DaemonLostError:  # it has begun to leave by itself
            pass
        except _daemon.NoDaemon:
            if not session.instance:
                return False
        finally:
            session.close()
        deadline = time.monotonic() + _LEAVE_SECONDS
        pause = 0.002
        # A process that ends frees its lock before its other files.
        while not _has_left(state_dir, session.instance) or not all(pidfd.wait(one, 0) for one in leaving):
            if time.monotonic() > deadline:
                raise DaemonUnavailableError(
                    "the daemon was told to leave, and still runs", hint=f"see {state_dir / _daemon.LOG}"
                )
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
    return True


def daemon_log(state_dir: Path, lines: int, *, follow: bool = False) -> Generator[str]:
    """Yield the last `lines` of the log of this directory's daemons, the oldest first.

    With `follow` it doesn't end: it yields all later lines too, also of later daemons.
    """
    last, log, rest = deque[bytes](maxlen=lines), None, b""
    path = state_dir / _daemon.LOG
    with contextlib.ExitStack() as files:
        for name in (path.with_name(f"{_daemon.LOG}.1"), path):
            with contextlib.suppress(FileNotFoundError):
                log = files.enter_context(open(name, "rb"))
                last.extend(log)
        yield from map(_text, last)
        while follow:
            is_replaced = log is None or not _is_there(log, path)  # before the last line of the old one is read
            for part in log or ():
                rest += part
                if rest.endswith(b"\n"):
                    yield _text(rest)
                    rest = b""
            if is_replaced:
                files.close()
                log = None
                with contextlib.suppress(FileNotFoundError):
                    log = files.enter_context(open(path, "rb"))
                    continue
            time.sleep(_LOOK_SECONDS)


def _is_there(log: BinaryIO, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(log.fileno()), os.stat(path))
    return False


def _text(line: bytes) -> str:
    return line.rstrip(b"\n").decode(errors="replace")


def _existing(state_dir: str) -> socket.socket:
    return _daemon.connect(state_dir, start=False)


def _has_left(state_dir: Path, instance: str) -> bool:
    """Return whether the lock is free, or held by the next daemon, which another program has started already."""
    lock = _daemon.lock(os.fspath(state_dir))
    if lock is not None:
        os.close(lock)
        return True
    try:
        now = daemon_status(state_dir)
    except (DaemonLostError, DaemonUnavailableError):
        return False
    return now is not None and now.instance != instance
