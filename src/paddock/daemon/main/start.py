"""The daemon's process, from its first line to its last. `docs/design/daemon.md` has the order of steps and why."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import time
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paddock import __version__
from paddock.backends.threads import TaskSet
from paddock.errors import InvalidArgumentError, PaddockError, exhaustion
from paddock.linux import inotify
from paddock.model import ExecId, KillSandbox, ListSandboxes, Principal, SandboxId, codec
from paddock.model.config import FILE
from paddock.wire import PROTOCOL

from . import _reserve
from ._code import Code
from ._listener import Leaving, Listener
from ._older import refuse_older_programs, rename_files, take_over_sessions
from ._process import control_group, detach, leave_root
from ._requests import ProgressHandler, Requests
from ._sessions import Session, all_of
from ._watchdog import Watchdog

LOCK = "daemon.lock"
LOG = "daemon.log"
_LOG_BYTES = 10 << 20
_CLOSE_SECONDS = 20.0
_AGAIN_SECONDS = 5.0

_log = logging.getLogger("paddock")

if TYPE_CHECKING:
    from .service import Service


def main(options: dict[str, Any]) -> None:
    """Serve the state directory `options["state"]`. The lock is descriptor `lock`, held already. Errors before the
    first client go to descriptor `ready`."""
    lock, ready = int(options["lock"]), int(options["ready"])
    code = 0
    try:
        kept = detach()
        leave_root()
        for descriptor in (lock, ready):
            os.set_inheritable(descriptor, False)
        state_dir = Path(options["state"])
        released = _reserve.release(state_dir)
        _open_log(state_dir)
        if released:
            _log.warning("the disk of %s is full: this daemon uses its reserve", state_dir)
        if kept:
            _log.warning("this daemon keeps its first caller's %s: the kernel does not let it go", ", ".join(kept))
        watchdog = Watchdog()
        runner = asyncio.Runner(loop_factory=watchdog.new_loop)
        # It isn't closed: that would wait for every thread, such as one that deletes a large tree.
        runner.run(_run(Daemon(state_dir, lock, watchdog), ready))
    except BaseException as error:
        if isinstance(error, PaddockError):
            _log.error("the daemon could not start: %s", error.message)
        else:
            _log.exception("the daemon could not go on")
        exhausted = exhaustion(error) if isinstance(error, OSError | RuntimeError) else None
        _report_ready(ready, codec.encode_error(exhausted or error))
        code = 1
    logging.shutdown()
    os._exit(code)  # the lock falls with the process, and its threads end


class Daemon:
    """The service of one state directory, and the sessions that use it."""

    def __init__(self, state_dir: Path, lock: int, watchdog: Watchdog) -> None:
        self._state_dir, self._lock, self._watchdog = state_dir, lock, watchdog
        self._principal = Principal(f"local:{os.getuid()}")
        self._instance, self._start = os.urandom(8).hex(), time.time()
        self._code = Code(state_dir / FILE)
        self._ends_sessions = self._closing = False
        self._end_tasks = TaskSet()
        self._idle: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()
        self._inotify = -1
        """Descriptor that reports changes of the state directory. -1: none."""

    async def run(self, ready: int) -> None:
        from ._compose import Node

        refuse_older_programs(self._state_dir)
        rename_files(self._state_dir)
        node = self._node = Node(self._state_dir)
        requests = Requests(node, self._principal, control=self._control, kept=self._is_kept)
        self._listener = Listener(requests, greet=self._greet, ended=self._session_ended)
        try:
            await node.open()
            take_over_sessions(self._state_dir, node.service.store)
            await node.service.start()
            self._restore_sessions()
            self._listener.listen(self._state_dir)
            self._watchdog.start()
            self._watch_directory()
            _report_ready(ready, b"{}")
            _log.info("the daemon of %s listens: paddock %s", self._state_dir, __version__)
            self._restart_idle()
            with contextlib.suppress(OSError):  # without a reserve it works as well, until the disk is full
                _reserve.renew(self._state_dir)
            gc.freeze()  # these objects live as long as the process: no collection needs to walk them
            await self._stopped.wait()
        finally:
            await self._close()

    @property
    def service(self) -> Service:
        return self._node.service

    async def _is_kept(self, command: str) -> bool:
        return await self.service.execs.is_kept(ExecId(command))

    def leave(self, why: str = "SIGTERM") -> None:
        """End `run`: sandboxes continue, and the next daemon takes over."""
        _log.info("the daemon leaves: %s", why)
        if not self._ends_sessions:
            self.service.execs.leaves = True
        self._listener.stop()
        self._stopped.set()

    async def _close(self) -> None:
        self._closing = True
        self._unwatch_directory()
        self._listener.stop()
        await self._listener.aclose()
        for session in tuple(self._listener.sessions.values()):
            session.end()
        if self._end_tasks:
            await asyncio.wait(self._end_tasks, timeout=_CLOSE_SECONDS)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._node.aclose(), _CLOSE_SECONDS)

    def _restore_sessions(self) -> None:
        """Take over the last daemon's sessions. A session lives as long as its process, whether it calls again or not.
        One in another pid namespace, seen as 0, counts as alive while a sandbox of it lives."""
        dead: list[Session] = []
        for process in self.service.sessions():
            session = self._listener.session(process.token, process.pid)
            session.has_asked = process.pid > 0
            if session.process != process:
                dead.append(session)
        for session in dead:  # after the loop: a living session may have the same sandbox
            session.end()

    def _greet(self, hello: codec.Hello) -> codec.Welcome:
        is_outdated = (hello.protocol, hello.version) != (PROTOCOL, __version__) or self._code.has_changed()
        if is_outdated and not self._is_used(hello.session):
            self.leave("its code or config.toml has changed, and no other program uses it")
            raise Leaving
        differs = tuple(sorted(name for name, value in hello.environment.items() if os.environ.get(name, "") != value))
        notices, self._node.notices = tuple(self._node.notices), []
        if is_outdated and hello.session not in self._listener.sessions:
            notices += (
                f"the daemon (pid {os.getpid()}) started before its code or config.toml changed;"
                " to replace it: paddock daemon restart",
            )
        return codec.Welcome(
            protocol=PROTOCOL,
            version=__version__,
            instance=self._instance,
            pid=os.getpid(),
            differs=differs,
            notices=notices,
        )

    def _session_ended(self, session: Session) -> None:
        if self._closing and not self._ends_sessions:
            return  # the rows of its sandboxes name it to the next daemon
        ends = self.service.ends_with(session.token, self._listener.sessions)
        self._end_tasks.start(self._end_session(session, ends))

    async def _end_session(self, session: Session, sandboxes: Sequence[SandboxId]) -> None:
        """End its handles, and its sandboxes. Repeat until these have ended: nothing else ends them."""
        await all_of(opened.let_go() for opened in session.handles.values())
        session.handles.clear()
        while errors := await all_of(self.service.sandboxes.end(id) for id in sandboxes):
            for error in errors:
                _log.error("a sandbox could not be ended with its program: %s", error)
            await asyncio.sleep(_AGAIN_SECONDS)
        if session.has_asked:
            self._restart_idle()

    def _is_used(self, by: str | None = None) -> bool:
        """Tell whether a session other than `by` uses the daemon, or a sandbox runs."""
        others = any(session.has_asked and session.token != by for session in self._listener.sessions.values())
        return others or bool(self._end_tasks or self._listener.tasks) or self.service.has_running()

    def _restart_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(self._node.config.idle_exit_seconds, self._leave_if_idle)

    def _leave_if_idle(self) -> None:
        if self._is_used():
            self._restart_idle()
        else:
            self.leave(f"idle for {self._node.config.idle_exit_seconds:.0f} s")

    def _watch_directory(self) -> None:
        """Watch the state directory. If it is deleted or moved, its sandboxes and this daemon end."""
        mask = inotify.DELETE | inotify.MOVED_FROM | inotify.DELETE_SELF | inotify.MOVE_SELF
        self._inotify = inotify.watch(self._state_dir, mask)
        asyncio.get_running_loop().add_reader(self._inotify, self._directory_changed)

    def _directory_changed(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._inotify, 65536)
        if not self._owns_directory():
            self._unwatch_directory()
            self._end_tasks.start(self._end_everything())

    def _unwatch_directory(self) -> None:
        self._code.close()
        if self._inotify >= 0:
            asyncio.get_running_loop().remove_reader(self._inotify)
            os.close(self._inotify)
            self._inotify = -1

    def _owns_directory(self) -> bool:
        """Tell whether clients still find the lock that this process holds."""
        try:
            return os.path.samestat(os.stat(self._state_dir / LOCK), os.fstat(self._lock))
        except OSError:
            return False

    async def _end_everything(self) -> None:
        self._listener.stop()
        self._ends_sessions = True
        found = await self._node.perform(ListSandboxes(), self._principal)
        kills = (self._node.perform(KillSandbox(sandbox=sandbox.id), self._principal) for sandbox in found)
        for error in await all_of(kills):
            _log.error("a sandbox could not be ended with its state directory: %s", error)
        self.leave("its state directory was deleted or moved")

    async def _control(self, what: str, session: Session) -> object:
        match what:
            case "status":
                return codec.Status(
                    pid=os.getpid(),
                    version=__version__,
                    instance=self._instance,
                    started_at=self._start,
                    state_dir=str(self._state_dir),
                    sessions=sum(other.pid != session.pid for other in self._listener.sessions.values()),
                    requests=len(self._listener.tasks) - 1,
                    idle_exit_seconds=self._node.config.idle_exit_seconds,
                    stops=self._watchdog.stops,
                    last_stop=self._watchdog.last_stop,
                    control_group=control_group(),
                )
            case "stop" | "restart":
                self._ends_sessions = what == "stop"
                asyncio.get_running_loop().call_soon(self.leave, what)  # after this answer
                return None
            case _:
                raise InvalidArgumentError(f"the daemon knows no {what!r}")


async def _run(daemon: Daemon, ready: int) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, daemon.leave)
    await daemon.run(ready)


class _Log(logging.FileHandler):
    """Write a log that its owner alone can read. Standard error goes there as well, with a crash's last output."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):  # the file was deleted
            if os.stat(self.baseFilename).st_size > _LOG_BYTES:
                self.close()
                os.replace(self.baseFilename, f"{self.baseFilename}.1")
        super().emit(record)

    def _open(self) -> TextIOWrapper:
        log = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        return os.fdopen(log, "a", encoding="utf-8", errors="backslashreplace")


def _open_log(state_dir: Path) -> None:
    handler = _Log(state_dir / LOG)
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.addHandler(ProgressHandler())


def _report_ready(ready: int, outcome: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(ready, outcome)
        os.close(ready)
