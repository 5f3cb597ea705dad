"""Processes that outlive what started them: found by putting a parent above the whole session.

What else a test may leave behind is looked for by `tests.conformance.leaks`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_SECONDS = 60.0
SUPERVISOR = "PADDOCK_TEST_SUPERVISOR"  # its pid, for workers of xdist too
_PR_SET_CHILD_SUBREAPER = 36


def wait_until(done: Callable[[], bool], *, seconds: float = PATIENCE_SECONDS) -> bool:
    """Polls until `done`, or until the deadline; whether it came to be."""
    deadline = time.monotonic() + seconds
    pause = 0.001
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    return True


def descriptors() -> set[str]:
    """Those that this process has open."""
    return set(os.listdir("/proc/self/fd"))


def none_lost(before: int) -> bool:
    """There are no more descriptors than `before`, now or soon: what runs beside a test opens and closes its own."""
    return wait_until(lambda: len(descriptors()) <= before)


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "gone"


def descendants(ancestor: int) -> list[int]:
    """Living ones; zombies are dead."""
    children: dict[int, list[int]] = {}
    for pid in processes():
        try:
            state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            children.setdefault(int(parent), []).append(pid)
    found: list[int] = []
    pending = [ancestor]
    while pending:
        found.extend(born := children.get(pending.pop(), []))
        pending.extend(born)
    return found


def supervise() -> None:
    """From here on the caller is the child of a process to which every orphan falls.

    So a supervisor, or a sandbox whose supervisor was killed, can be found at the end: by its ancestor, however it
    has detached itself. The supervisor only reaps, and ends as its child ends.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = os.fork()
    if child == 0:
        os.environ[SUPERVISOR] = str(os.getppid())
        return
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child, number))
        while True:
            pid, status = os.wait()
            if pid == child:
                break
        code = os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)
    finally:
        os._exit(70)


def end_strays() -> list[str]:
    """Processes that were started in this session and still live, in words; they are killed. Needs `supervise`."""
    found: list[int] = []

    def look() -> bool:
        found[:] = [pid for pid in descendants(os.getppid()) if pid != os.getpid()]
        return not found

    wait_until(look, seconds=20)
    named = [f"process {pid} ({command_line(pid)})" for pid in found]
    groups = {group for pid in found for group in _groups_of(pid)}
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(look)
    for group in groups:  # no other supervisor will ever come to sweep them
        for part in (*group.glob("gr_*"), group):
            with contextlib.suppress(OSError):
                part.rmdir()
    return named


def _groups_of(pid: int) -> list[Path]:
    """The control groups of a whole supervisor, which it holds open and its sandboxes are below."""
    try:
        held = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return []
    groups = {Path(link) for link in held if link.startswith("/sys/fs/cgroup/")}
    for line in lines:
        path = line.split(":", 2)[2].lstrip("/")
        groups |= {tree / path for tree in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*/"))}
    supervisors = {group.parent if group.name.startswith("gr_") else group for group in groups}
    return [group for group in supervisors if group.name.startswith("paddock_")]
