"""Run the supervisor's process: take the lock, set up, serve, clean up."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import time
import traceback
from pathlib import Path
from typing import Any, cast

from paddock.linux import children, local_sockets, pidfd, proc
from paddock.linux.descriptors import closing
from paddock.linux.python import seal_imports
from paddock.supervisor import _context, _serve, layout
from paddock.supervisor.bootstrap import READY

_TITLE = b"paddock"
LOCK_SECONDS = 2.0


def main(options: dict[str, Any]) -> None:
    """Serve the state directory; leave at once if another supervisor holds the lock. Print READY on stdout."""
    parent = os.getpid()
    # Each sandbox needs descriptors. unix(7) also limits descriptors in flight, for all processes of a user, to the
    # sender's limit of open files: an ordinary user's supervisor needs as many as its sandboxes.
    children.detach(umask=0o077)
    _outlive(parent)
    state = Path(cast("str", options["state"]))
    os.environ.clear()
    lock = os.open(state / layout.SUPERVISOR_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _take_lock(lock):
        return
    try:
        _set_title()
        context = _context.open_context(state, cast("str", options["guest"]))
        listener = local_sockets.listen(state, layout.SUPERVISOR_SOCKET)
        seal_imports()
        os.write(1, READY)
        for number in (0, 1):
            os.dup2(context.null, number)
        _serve.Supervisor(context, listener, for_tests=bool(options.get("for_tests"))).run()
        _clean_up(context, state)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _take_lock(lock: int) -> bool:
    """Take the lock. Return False if another supervisor lives. Children of a killed one hold it for a moment longer."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True


def _outlive(parent: int) -> None:
    """Wait until `parent` has ended: a control group with two processes can't have controllers below it."""
    with contextlib.suppress(ProcessLookupError), closing(pidfd.open(parent)) as process:
        pidfd.wait(process)


def _clean_up(context: _context.SupervisorContext, state: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # the state directory has been deleted
        os.unlink(state / layout.SUPERVISOR_SOCKET)
    if context.groups is not None:
        with contextlib.suppress(OSError):  # the next supervisor removes a group that remains
            context.groups.remove()


def _set_title() -> None:
    """Overwrite the command line, which pid 1 of each sandbox inherits and shows inside.

    Fields 48 and 49 of proc_pid_stat(5) say where it lies in this process's memory.
    """
    start, end = map(int, proc.stat("self")[47:49])
    if end - start > len(_TITLE):
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, _TITLE, len(_TITLE))
    with open("/proc/self/comm", "wb") as name:
        name.write(_TITLE)
