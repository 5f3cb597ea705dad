"""Sockets by their name in a directory, whose own path may be longer than the 107 bytes that unix(7) has room for."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

BACKLOG = 64


def connect(directory: str | os.PathLike[str], name: str) -> socket.socket | None:
    """Return a non-blocking stream, or None without a listener or with a full backlog.

    Raises OSError for other errors.
    """
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.setblocking(False)
        with reached(directory) as short:
            peer.connect(f"{short}/{name}")
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
        peer.close()
        return None
    except BaseException:
        peer.close()
        raise
    return peer


def listen(directory: str | os.PathLike[str], name: str) -> socket.socket:
    """Return a listener, and replace any file of that name. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with reached(directory) as short:
            with suppress(FileNotFoundError):
                os.unlink(f"{short}/{name}")
            listener.bind(f"{short}/{name}")
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


@contextmanager
def reached(directory: str | os.PathLike[str]) -> Generator[str]:
    """Yield a short path to it, as long as the block runs."""
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{place}"
    finally:
        os.close(place)
