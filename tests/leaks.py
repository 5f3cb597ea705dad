"""What a test may leave behind: nothing. Each kind of thing, and how it is found.

Only what bears the mark of a state directory is looked at, so that other programs on the machine,
other paddocks included, are never mistaken for leaks.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# The kernel takes things down in its own time (a network namespace: some 100 ms), so they are waited for.
PATIENCE_SECONDS = 15.0
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


def remains(state_dir: Path) -> list[str]:
    """Everything that still lives because of this state directory, when nothing should; polled until the deadline."""
    found: list[str] = []

    def look() -> bool:
        found[:] = [*live_sandboxes(state_dir), *holders(state_dir), *_mounts(state_dir), *_loops(state_dir)]
        found.extend(cgroups_of(state_dir))
        return not found

    wait_until(look)
    return found


def live_sandboxes(state_dir: Path) -> list[str]:
    return sorted(entry.name for entry in state_dir.glob("run/*") if entry.is_dir())


def holders(state_dir: Path) -> Iterator[str]:
    """Other processes that have a descriptor, a working directory or a root in it, such as a keeper."""
    prefix = f"{state_dir}/"
    for pid in processes():
        if pid == os.getpid():
            continue
        for link in (*_links(f"/proc/{pid}/fd"), f"/proc/{pid}/cwd", f"/proc/{pid}/root"):
            try:
                target = os.readlink(link)
            except OSError:
                continue
            if f"{target}/".startswith(prefix):
                yield f"process {pid} ({command_line(pid)}) holds {target}"
                break


def _mounts(state_dir: Path) -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if str(state_dir) in line:
            yield f"mount: {line}"


def _loops(state_dir: Path) -> Iterator[str]:
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            file = backing.read_text().strip()
        except OSError:
            continue
        if file.startswith(f"{state_dir}/"):
            yield f"loop device {backing.parts[3]} of {file}"


def cgroups_of(state_dir: Path) -> Iterator[str]:
    mark = f"paddock_{hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:12]}"  # as keeper/_house.py names its base
    for directory, names, _ in os.walk("/sys/fs/cgroup"):
        if mark in names:
            yield f"cgroup: {directory}/{mark}"


# --- processes ---------------------------------------------------------------------------------------------------


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

    So a keeper, or a sandbox whose keeper was killed, can be found at the end: by its ancestor, however it
    has detached itself. The supervisor only reaps, and ends as its child ends.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = os.fork()
    if child == 0:
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


def strays() -> list[str]:
    """Processes that were started in this session and still live; needs `supervise`."""
    found: list[int] = []

    def look() -> bool:
        found[:] = [pid for pid in descendants(os.getppid()) if pid != os.getpid()]
        return not found

    wait_until(look, seconds=5)
    return [f"process {pid} ({command_line(pid)})" for pid in found]


def _links(directory: str) -> list[str]:
    try:
        return [f"{directory}/{name}" for name in os.listdir(directory)]
    except OSError:
        return []
