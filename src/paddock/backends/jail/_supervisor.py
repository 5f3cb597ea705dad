"""The daemon's side of the supervisor: finds it, starts it where there is none, asks it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from paddock.backends.guest import program
from paddock.backends.threads import in_thread
from paddock.errors import (
    OUT_OF,
    InternalError,
    InvalidArgumentError,
    PaddockError,
    ResourceExhaustedError,
    SandboxDiedError,
    SandboxError,
    SupervisorUnavailableError,
)
from paddock.linux import local_sockets
from paddock.linux.python import SOURCE
from paddock.storage import Templates, open_pool, prepare
from paddock.supervisor import layout
from paddock.supervisor.bootstrap import BOOTSTRAP, READY, VERSION
from paddock.wire import NO_REPLY, Frame, Kind, close_all, copy_all
from paddock.wire.duplex import Attempt, Duplex, NoAnswer, NotSent, OtherVersion, greet

_EXHAUSTED = {"EAGAIN", "EMFILE", "ENFILE", "ENOMEM", "ENOSPC", "EDQUOT", "ENOBUFS", "EUSERS", "EIO"}
_REMEDY = {
    "EUSERS": "every sandbox has a range of ids of its own: kill some, `paddock ls` lists them",
    "EIO": "the disk below could not write; make room there (df -h) and try again; paddock doctor --storage",
}
_REPEATABLE = frozenset(
    {
        "awake",
        "deadline",
        "exits",
        "freeze",
        "inspect",
        "keep",
        "kept",
        "kill",
        "list",
        "pause",
        "resume",
        "thaw",
        "usage",
    }
)
_TOOLS = "/usr/bin:/bin"
_WANTED = {"memory", "pids", "cpu"}
_ERRNO = re.compile(r"\[Errno (\d+)\]")
Message = dict[str, Any]
_quick = msgspec.json.Encoder().encode
Listener = Callable[[Message], None]
_SOON_SECONDS = 0.02


class SupervisorClient:
    """Hold the daemon's one connection to the supervisor of `state_dir`, which all backends share. It connects when
    first needed, and again when the supervisor was replaced. It closes after the last backend has left.

    News of the supervisor goes to all backends: `ended` (id, number, limit, reason), `paused`, `resumed`. So does
    `lost`, when the supervisor has gone, and `replaced` after a new connection: then they list what they missed.
    """

    def __init__(self, state_dir: Path, *, for_tests: bool = False) -> None:
        self.state_dir, self._for_tests = state_dir, for_tests
        self._listeners: list[Listener] = []
        self._connection: Duplex | None = None
        self._attempt, self._opening = Attempt(), asyncio.Lock()
        self._was_connected = False
        self._forgotten: list[str] = []
        self._templates: Templates | None = None
        self.holds = itertools.count(1)
        """Numbers for holds, each used once."""
        self.facts: Message = {}
        self.pool: int | None = None
        """The pool's directory, as the supervisor mounted it; this client's own descriptor."""

    def join(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def leave(self, listener: Listener) -> None:
        """Idempotent."""
        self._listeners = [one for one in self._listeners if one != listener]
        if not self._listeners:
            self.close()

    def close(self) -> None:
        self._send_forgotten()
        connection, self._connection = self._connection, None
        self._attempt.cancel()
        self._opening, self._was_connected = asyncio.Lock(), False
        if connection is not None:
            connection.close()
        if self._templates is not None:
            self._templates.pool.close()
            self._templates = None
        if self.pool is not None:
            os.close(self.pool)
            self.pool = None

    async def templates(self) -> Templates:
        """Return the templates of the pool, which is opened once for all backends. Makes the pool the first time."""
        if self._templates is None:
            async with self._opening:
                if self._templates is None:
                    config = await in_thread(prepare, self.state_dir)
                    await self.connect()
                    assert self.pool is not None
                    self._templates = Templates(open_pool(self.state_dir, config, os.dup(self.pool)))
        return self._templates

    @property
    def connected(self) -> bool:
        return self._connection is not None

    async def request(self, operation: str, descriptors: tuple[int, ...] = (), **fields: object) -> Message:
        """Ask and wait for the answer, whose descriptors are in `fds`. The supervisor gets copies of `descriptors`.

        SupervisorUnavailableError, SandboxDiedError, or the PaddockError that fits what the supervisor says."""
        held = copy_all(descriptors)  # their owner may close them while this waits
        try:
            await self.connect()
            body = self._body(operation, fields)
            try:
                return await self._exchange(body, held)
            except SupervisorUnavailableError as error:
                if operation not in _REPEATABLE and not error.details.get("unheard"):
                    raise
            # It may have died before the request came: its successor knows as much, and a second request does no harm.
            await self.connect()
            return await self._exchange(body, held)
        finally:
            close_all(held)

    async def tell(self, operation: str, **fields: object) -> None:
        """Send a request that needs no answer. The supervisor carries it out before any later request."""
        await self.connect()
        if self._connection is not None:
            with contextlib.suppress(NotSent):
                self._connection.send(Kind.OPEN, 0, self._body(operation, fields), flags=NO_REPLY)

    def forget(self, id: str) -> None:
        """Drop the record of a sandbox that has ended: with the next request, which may be its next create, or soon."""
        self._forgotten.append(id)
        if len(self._forgotten) == 1:
            asyncio.get_running_loop().call_later(_SOON_SECONDS, self._send_forgotten)

    def _send_forgotten(self) -> None:
        """Without a supervisor they wait for the next request."""
        if self._forgotten and self._connection is not None:
            body = self._body("forget", {"id": self._forgotten.pop()})
            with contextlib.suppress(NotSent):
                self._connection.send(Kind.OPEN, 0, body, flags=NO_REPLY)

    def _body(self, operation: str, fields: Message) -> bytes:
        forgotten, self._forgotten = self._forgotten, []
        return _encode({"op": operation, **fields, **({"forgotten": forgotten} if forgotten else {})})

    async def connect(self) -> None:
        if self._connection is not None:
            return
        try:
            await self._attempt.join(self._connect)
        except NoAnswer as error:
            raise SupervisorUnavailableError(
                f"the supervisor hangs: {error}",
                hint=f"kill -9 {error.pid}; the next one takes over its sandboxes, which run on",
            ) from None

    async def _connect(self, on_silence: Callable[[NoAnswer], object]) -> bool:
        if await self._greet(on_silence):
            return True
        await in_thread(self._start)  # else it would start an unwanted supervisor
        if await self._greet(on_silence):
            return True
        raise SupervisorUnavailableError(
            "the supervisor does not answer", hint=f"see {self.state_dir / layout.SUPERVISOR_LOG}"
        )

    async def _greet(self, on_silence: Callable[[NoAnswer], object]) -> bool:
        connect = partial(local_sockets.connect, self.state_dir, layout.SUPERVISOR_SOCKET)
        try:
            greeting = await greet(connect, _encode({"version": VERSION}), self._on_frame, self._lost, on_silence)
        except OtherVersion as error:
            raise _foreign(error.pid) from None
        if greeting is None:
            return False
        connection, answer = greeting
        if answer.kind is Kind.ERROR:
            connection.close()
            raise _foreign(connection.pid)
        self._connection, self.facts = connection, json.loads(answer.body)
        if self.pool is not None:
            os.close(self.pool)
        (self.pool,) = answer.descriptors
        if self._was_connected:
            self._tell_all({"event": "replaced"})
        self._was_connected = True
        return True

    async def _exchange(self, body: bytes, descriptors: tuple[int, ...]) -> Message:
        if self._connection is None:
            raise SupervisorUnavailableError("the supervisor went away", unheard=True)
        try:
            answer = await self._connection.ask(body, copy_all(descriptors))
        except ConnectionError as error:
            raise SupervisorUnavailableError(
                "the supervisor went away before it answered", unheard=isinstance(error, NotSent), lost=True
            ) from error
        result: Message = json.loads(answer.body)
        if answer.kind is Kind.ERROR:
            raise _error(result)
        return {**result, "fds": list(answer.descriptors)} if answer.descriptors else result

    def _on_frame(self, connection: Duplex, frame: Frame) -> None:
        close_all(frame.descriptors)
        self._tell_all(json.loads(frame.body))

    def _tell_all(self, event: Message) -> None:
        for listener in tuple(self._listeners):
            listener(event)

    def _lost(self, connection: Duplex) -> None:
        if self._connection is connection:
            self._connection = None
            self._tell_all({"event": "lost"})

    def _start(self) -> None:
        """Start a supervisor and wait until it is ready or gone. Gone isn't an error: another one may hold the lock."""
        options = {"source": SOURCE, "guest": str(program()), "state": str(self.state_dir.absolute())}
        options |= {"for_tests": self._for_tests}
        own_group = scope()
        ran, ready = self._launch(*own_group, options) if own_group is not None else (False, False)
        if not ran:
            _, ready = self._launch([], {}, options)
        text = (self.state_dir / layout.SUPERVISOR_LOG).read_text(errors="replace").strip()
        if not ready and text:
            from paddock.backends.jail import _probe

            if (reason := _probe.unusable()) is not None:
                raise SupervisorUnavailableError(reason, hint=_probe.remedy(reason))
            raise _could_not_start(text)

    def _launch(self, prefix: list[str], environment: dict[str, str], options: Message) -> tuple[bool, bool]:
        """Whether the program ran, and whether it is the supervisor now."""
        log = os.open(
            self.state_dir / layout.SUPERVISOR_LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )
        try:
            process = subprocess.Popen(
                [*prefix, sys.executable, "-I", "-S", "-c", BOOTSTRAP],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(log)
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(_encode(options))
            # Not to its end: a child of the supervisor has it, as long as that lives.
            ready = process.stdout.read(len(READY)) == READY
        return process.returncode == 0, ready


def scope() -> tuple[list[str], dict[str, str]] | None:
    """Return a command prefix that gives a program its own control group, and the environment for it.

    systemd gives a program a part of the cgroup tree this way (systemd.scope(5)). Otherwise the supervisor would share
    the group of its first caller with unrelated processes.

    None if the machine offers none: no systemd, no service manager of this user, no controllers of version 2. The
    command itself gets an empty environment.
    """
    systemd_run, env = (shutil.which(name, path=_TOOLS) for name in ("systemd-run", "env"))
    if systemd_run is None or env is None or not os.path.isdir("/run/systemd/system") or not _has_controllers():
        return None
    argv = [systemd_run, "--scope", "--quiet", "--collect", "--property=Delegate=yes", "--property=TasksMax=infinity"]
    environment: dict[str, str] = {}
    if (uid := os.getuid()) != 0:
        runtime = Path(f"/run/user/{uid}")
        if not (runtime / "systemd/private").exists() and not (runtime / "bus").exists():
            return None
        argv.append("--user")
        environment = {"XDG_RUNTIME_DIR": str(runtime), "DBUS_SESSION_BUS_ADDRESS": f"unix:path={runtime}/bus"}
    return [*argv, "--description=paddock", "--", env, "-i"], environment


def _encode(message: Message) -> bytes:
    try:
        return _quick(message)
    except UnicodeEncodeError:  # a path or a variable that is no UTF-8 has lone surrogates, which JSON can escape
        return json.dumps(message).encode()


def _has_controllers() -> bool:
    try:
        return bool(_WANTED & set(Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()))
    except OSError:
        return False  # version 1, of which systemd hands nothing on


def _foreign(pid: int) -> SupervisorUnavailableError:
    return SupervisorUnavailableError(
        f"the supervisor of another version of paddock serves this state directory (process {pid})",
        hint=f"end its sandboxes, then it: kill {pid}; paddock starts its own",
    )


def _error(answer: Message) -> PaddockError:
    text, number = str(answer["error"]), answer.get("errno")
    if answer.get("kind") == "Gone":
        return SandboxDiedError(text)
    name = errno.errorcode.get(number) if isinstance(number, int) else None
    if name in _EXHAUSTED:
        hint = _REMEDY.get(name, "paddock doctor")
        return ResourceExhaustedError(f"the supervisor could not do that: {text}", hint=hint, errno=name)
    if answer.get("kind") == "TimeoutError":
        return SandboxError("not all of the sandbox stopped in time", hint="try again")
    if answer.get("kind") in ("PlanError", "MountError"):
        return InvalidArgumentError(text)
    return InternalError(f"the supervisor failed: {text}", hint="paddock doctor", errno=name)


def _could_not_start(text: str) -> PaddockError:
    """By what its log ends with."""
    words = f"the supervisor could not start: {text.splitlines()[-1]}"
    if (found := _ERRNO.search(text)) and int(found[1]) in (*OUT_OF, errno.EAGAIN):
        return ResourceExhaustedError(words, hint="paddock doctor", errno=errno.errorcode[int(found[1])])
    return SupervisorUnavailableError(words, hint="paddock doctor")
