"""The daemon's loop never blocks: no action computes for 5 ms in one step of it, or makes a call that may wait.

What it writes without waiting for the disk isn't looked for: rows of SQLite (synchronous = NORMAL, checkpoints in a
thread) and lines of the audit log, both into the kernel's page cache.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import CoroutineType, FrameType
from typing import Any

import pytest

import paddock
from paddock.model import Action
from paddock.model.any_action import BY_TAG
from tests.daemon.every_action import play
from tests.in_process import in_process
from tests.remotes.git_host import Host, with_login

STEP_SECONDS = 0.005
ROUNDS = 8
"""A step is as long as in the best of so many rounds: the machine and Python's collector disturb none each time."""

KNOWN = {
    "daemon/access/secrets.py set": "a key and a row are one: the lock and the ring of keys are read beside the row",
    "daemon/access/secrets.py rotate_key": "as above; the new ring is on the disk before a row needs it",
    "storage/git/_process.py run": "asyncio starts the host's git: vfork(2) until execve(2)",
    "storage/commands.py _start": "asyncio starts the caller's git: vfork(2) until execve(2)",
}
"""What still blocks, by the function that does. To be shortened only."""

_NEVER_WAIT = ("/proc/", "/sys/", "/dev/null")
_CALLS = frozenset(
    {
        *("open", "import", "socket.getaddrinfo", "socket.gethostbyname", "sqlite3.connect", "time.sleep"),
        *("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"),
        *("os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink"),
        *("os.truncate", "os.chmod", "os.chown", "os.utime", "os.setxattr", "os.getxattr", "os.listxattr"),
        *("socket.connect", "fcntl.flock", "fcntl.lockf"),
    }
)
_MODULES = ("shutil.", "tempfile.", "glob.")
_PACKAGE = str(Path(paddock.__file__).parent) + "/"


class LoopThread:
    """Measures the steps of a loop's thread, and sees its calls, for the action `tag` that is under way."""

    def __init__(self) -> None:
        self.thread, self.tag = 0, ""
        self.steps: dict[str, tuple[float, str]] = {}
        self.calls: dict[str, str] = {}
        self.known: set[str] = set()

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """An audit hook stays as long as the process. It looks at one thread only, and at none afterwards."""
        patch.setattr(asyncio.Handle, "_run", self._stepping(asyncio.Handle._run))  # pyright: ignore[reportPrivateUsage]
        patch.setattr(os, "open", self._opening(os.open))
        for name in ("fsync", "fdatasync", "sync"):
            patch.setattr(os, name, self._syncing(getattr(os, name)))
        sys.addaudithook(self._hook)

    def _stepping(self, run: Callable[[asyncio.Handle], None]) -> Callable[[asyncio.Handle], None]:
        def step(handle: asyncio.Handle) -> None:
            if threading.get_ident() != self.thread:
                return run(handle)
            before, began = _place(handle), time.thread_time()
            run(handle)
            took = time.thread_time() - began
            if took > self.steps.get(self.tag, (0.0, ""))[0]:
                self.steps[self.tag] = took, f"from {before}\n      to {_place(handle)}"

        return step

    def _opening(self, call: Callable[..., int]) -> Callable[..., int]:
        def open(path: Any, flags: int, *rest: Any, **options: Any) -> int:
            if threading.get_ident() == self.thread and not flags & os.O_PATH:
                self._note("open", _path(path, options.get("dir_fd")))
            return call(path, flags, *rest, **options)

        return open

    def _syncing(self, call: Callable[..., None]) -> Callable[..., None]:
        def sync(*arguments: Any) -> None:
            if threading.get_ident() == self.thread:
                self._note("os.sync", _path(*arguments))
            call(*arguments)

        return sync

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if threading.get_ident() != self.thread or not (event in _CALLS or event.startswith(_MODULES)):
            return
        match event, arguments:
            case "open", (path, mode, *_) if mode is None or isinstance(path, int):
                return  # `os.open`, which is seen above; a file object for a descriptor
            case "socket.connect", (peer, *_) if peer.gettimeout() == 0:
                return
            case (("fcntl.flock" | "fcntl.lockf"), (_, how, *_)) if how & fcntl.LOCK_NB:
                return
            case "os.chmod", (int(), *_):
                return
            case _:
                self._note(event, _path(arguments[0] if arguments else ""))

    def _note(self, event: str, what: str) -> None:
        if not what.startswith(_NEVER_WAIT):
            stack = list(_stack(sys._getframe(2)))  # pyright: ignore[reportPrivateUsage]
            known = next((place for place in stack if place in KNOWN), None)
            if known is not None:
                self.known.add(known)
            else:
                self.calls.setdefault(f"{event} {what}\n      in {' < '.join(stack)}", self.tag)


def _path(path: Any, directory: int | None = None) -> str:
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")
    shown = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else repr(path)
    return shown if directory is None else f"{_path(directory)}/{shown}"


def _stack(frame: FrameType | None) -> Generator[str]:
    """The functions of ours, from the inmost."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_PACKAGE):
            yield f"{frame.f_code.co_filename.removeprefix(_PACKAGE)} {frame.f_code.co_name}"
        frame = frame.f_back


def _place(handle: asyncio.Handle) -> str:
    """The callback, and of a task the coroutines that wait in it."""
    callback: Any = handle._callback  # pyright: ignore[reportAttributeAccessIssue]
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return getattr(callback, "__qualname__", repr(callback))
    names: list[str] = []
    inner: Any = task.get_coro()  # pyright: ignore[reportUnknownMemberType]
    while isinstance(inner, CoroutineType):
        names.append(f"{inner.__qualname__}:{inner.cr_frame.f_lineno if inner.cr_frame else 'end'}")
        inner = inner.cr_await
    return " > ".join(names)


@pytest.fixture
def host(tmp_path: Path) -> Generator[Host]:
    with with_login(tmp_path) as made:
        yield made


def test_no_action_holds_the_loop(state_dir: Path, tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, asked = LoopThread(), set[str]()
    loop.watch(monkeypatch)
    with in_process(state_dir) as daemon:

        def ask(action: Action[Any]) -> Any:
            loop.tag = action.TAG
            asked.add(action.TAG)
            return daemon.transport.perform(action)

        def round(number: int) -> dict[str, tuple[float, str]]:
            loop.steps = {}
            directory = tmp_path / f"round{number}"
            directory.mkdir()
            play(ask, directory, host)
            return loop.steps

        async def thread() -> int:
            return threading.get_ident()

        loop.thread = daemon.run(thread)
        try:
            first = round(0)  # imports modules, makes templates
            _show("the first time", first)
            assert asked == set(BY_TAG), "an action that `play` does not perform"
            loop.calls.clear()
            best = round(1)
            for number in range(2, ROUNDS):
                if all(took <= STEP_SECONDS for took, _ in best.values()):
                    break
                best = {tag: min(best[tag], step) for tag, step in round(number).items() if tag in best}
            _show("at best", best)
        finally:
            loop.thread = 0
    slow = [f"{tag}: {took * 1000:.1f} ms\n    {place}" for tag, (took, place) in best.items() if took > STEP_SECONDS]
    calls = [f"{tag}: {call}" for call, tag in loop.calls.items()]
    assert not slow, "steps of the loop that compute for too long:\n" + "\n".join(slow)
    assert not calls, "calls that may wait, in the loop:\n" + "\n".join(calls)
    assert loop.known == set(KNOWN), "KNOWN names what no longer blocks"


def _show(when: str, steps: dict[str, tuple[float, str]]) -> None:
    print(f"the longest steps, {when}:")
    for tag, (took, place) in sorted(steps.items(), key=lambda item: -item[1][0])[:12]:
        print(f"  {took * 1000:6.2f} ms {tag}: {place}")
