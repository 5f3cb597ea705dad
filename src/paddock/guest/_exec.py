"""Commands: `exec`, `execs`, `signal`, `kill_exec`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import termios
import time
from collections.abc import Callable
from struct import pack as pack_struct
from typing import Any, cast

from . import _requests as requests
from ._config import AgentConfig, UserEntry
from ._connection import Channel, Handler
from ._faults import Fault, encode, show
from ._frames import STDIN, Json, dump_json
from ._loop import Loop
from ._paths import locate
from ._pumps import Sink, Source
from ._run import Exec as Exec
from ._run import ExecFollower as ExecFollower
from ._spawn import Program, spawn
from ._stdio import Stdio, given, piped, terminal
from ._tree import MARKER, Family, Tags, TreeKill

REMEMBERED = 1024
"""Finished commands whose tree can still be killed, and background ones whose status is kept."""
MAX_ARGUMENTS = 100_000
_LIST_BYTES = 200 * 1024
_LOOK_SECONDS = 1.0


class Execs:
    """All commands of one agent."""

    def __init__(self, loop: Loop, config: AgentConfig) -> None:
        self._loop = loop
        self._config = config
        self._env = {encode(name): encode(value) for name, value in config.env.items()}
        self._tags = Tags()
        self._all: dict[str, Exec] = {}
        self._started = 0
        self._running: dict[int, Exec] = {}
        self._kills: list[TreeKill] = []
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)

    # requests

    def start(self, channel: Channel, request: Json, descriptors: list[int]) -> Handler | None:
        exec_id = requests.identifier(request, "id")
        if exec_id in self._all:
            raise Fault("already_exists", f"there is a command {exec_id} already")
        program = self._program(request, exec_id)
        if requests.flag(request, "background"):
            timeout_seconds = requests.optional_seconds(request, "timeout_seconds")
            run = self._start_background(channel, exec_id, program, descriptors)
            if timeout_seconds is not None:
                self._watch_time(run, timeout_seconds)
            return None
        wants_stdin = requests.flag(request, "stdin")
        if program.terminal:
            stdio = terminal()
        elif descriptors:
            stdio = given(descriptors, wants_stdin, self._null)
        else:
            stdio = piped(wants_stdin, self._null)
        try:
            if stdio.terminal is not None:
                set_size(stdio.terminal, checked_size(request["pty"]))
            run = self._spawn(exec_id, program, stdio.child, background=False)
        except BaseException:
            stdio.abandon()
            raise
        stdio.started()
        channel.reply({"pid": run.pid})
        run.handler = ExecHandler(self, self._loop, channel, run, stdio)
        return run.handler

    def list(self, request: Json) -> Json:
        """What runs, and background ones that have ended: the newest, as many as one answer holds. `before` is there if
        some are left out; to be asked with for those."""
        before = requests.optional_number(request, "before")
        found: list[Json] = []
        room, last = _LIST_BYTES, 0
        for run in reversed(self._all.values()):
            told = before is not None and run.number >= before
            if told or (run.status is not None and not run.background):
                continue
            if room < 0:
                return {"execs": found, "before": last}
            found.append(run.info())
            room -= len(dump_json(found[-1]))
            last = run.number
        return {"execs": found}

    def find(self, request: Json) -> Exec:
        exec_id = requests.identifier(request, "id")
        run = self._all.get(exec_id)
        if run is None:
            raise Fault("not_found", f"no command {exec_id}")
        return run

    def signal(self, request: Json) -> None:
        run = self.find(request)
        self.send_signal(run, requests.number(request, "signal", low=1, high=64))

    def resize(self, request: Json) -> None:
        """Silent when the command has ended: that it would just have done so is nobody's mistake."""
        run = self.find(request)
        checked_size(request)
        if run.handler is not None:
            run.handler.resize(request)
        elif run.background:
            raise Fault("invalid_argument", "the command has no terminal")

    def send_signal(self, run: Exec, number: int) -> None:
        """To its process group, which it leads unless it has moved; then to itself."""
        if run.status is not None:
            raise Fault("invalid_state", f"the command {run.id} has ended")
        try:
            os.killpg(run.pid, number)
        except ProcessLookupError:
            os.kill(run.pid, number)

    def kill(self, channel: Channel, request: Json) -> Handler:
        def killed(survivors: int) -> None:
            channel.answer({"survivors": survivors})

        self.kill_tree(self.find(request), killed)
        return Handler()  # the host may let go, the kill goes on

    def kill_tree(self, run: Exec, done: Callable[[int], None]) -> None:
        self._kills.append(TreeKill(self._loop, run.family, done))

    def _watch_time(self, run: Exec, timeout_seconds: float) -> None:
        """Ends it when it has run so long, whoever else lives. While the machine sleeps no time passes for it.

        Nor while the sandbox stands still: nobody tells of that, but then a look comes late, and counts as two at most.
        """
        now = time.monotonic()
        run.counted += min(now - run.looked_at, 2 * _LOOK_SECONDS)
        run.looked_at = now
        left = timeout_seconds - run.counted
        if left > 0:
            run.timer = self._loop.after(min(left, _LOOK_SECONDS), lambda: self._watch_time(run, timeout_seconds))
        elif run.status is None:
            run.limit = "time"
            run.ending = True
            self.kill_tree(run, lambda survivors: self._timed_out(run))

    def _timed_out(self, run: Exec) -> None:
        run.ending = False
        if run.held is not None:
            self._tell(run, run.held)

    # life and death

    def died(self, pid: int, wait_status: int) -> None:
        """A child of ours, or an orphan that became one."""
        run = self._running.pop(pid, None)
        if run is not None:
            code = os.waitstatus_to_exitcode(wait_status)
            status = {
                "code": code if code >= 0 else None,
                "signal": -code if code < 0 else None,
                "limit": run.limit,
                "duration_seconds": round(time.monotonic() - run.started, 6),
            }
            if run.timer is not None:
                run.timer.cancel()
            if run.ending:
                run.held = status
            else:
                self._tell(run, status)
        for kill in self._kills:
            kill.reaped(pid)
        if self._kills:
            self._kills = [kill for kill in self._kills if not kill.finished]

    def _tell(self, run: Exec, status: Json) -> None:
        run.status = status
        handler, run.handler = run.handler, None
        if handler is not None:
            handler.ended(status)
        for follower in list(run.followers):
            follower.exec_ended()
        self._forget_old()

    def _forget_old(self) -> None:
        while len(self._all) > REMEMBERED:
            old = next((key for key, run in self._all.items() if run.status is not None and not run.followers), None)
            if old is None:
                return
            del self._all[old]

    def _program(self, request: Json, exec_id: str) -> Program:
        argv = requests.texts(request, "argv")
        if not argv or not argv[0] or len(argv) > MAX_ARGUMENTS:
            raise Fault("invalid_argument", "argv must name a program")
        user = self._user(request)
        env = {**self._env}
        if user is not None:
            env |= {b"USER": encode(user.name), b"LOGNAME": encode(user.name), b"HOME": encode(user.home)}
        env |= requests.environment(request)
        cwd = requests.path({"cwd": request.get("cwd") or self._config.workdir}, "cwd", self._config)
        return Program(
            argv=tuple(encode(argument) for argument in argv),
            env=env,
            cwd=locate(cwd, self._config),
            switch_to=user,
            terminal=request.get("pty") is not None,
        )

    def _user(self, request: Json) -> UserEntry | None:
        """Whom to switch to; None for the agent's own."""
        name = requests.optional_text(request, "user")
        entry = self._config.entry(name)
        if entry is None:
            raise Fault("not_found", f"no user {name!r} in the sandbox")
        if entry == self._config.user:
            return None
        if not self._config.may_switch_user:
            raise Fault("unsupported", f"{self._config.user.name} cannot become {entry.name} here")
        return entry

    def _spawn(self, exec_id: str, program: Program, ends: tuple[int, int, int], *, background: bool) -> Exec:
        tag = self._tags.take()
        if tag is None or not tag.alone:
            program = program._replace(env={**program.env, MARKER: exec_id.encode()})
        try:
            pid = spawn(program, *ends)
        finally:
            self._tags.leave()
        self._started += 1
        run = Exec(
            id=exec_id,
            number=self._started,
            argv=tuple(show(argument) for argument in program.argv),
            pid=pid,
            background=background,
            family=Family(exec_id=exec_id, pid=pid, tag=tag),
        )
        self._all[exec_id] = self._running[pid] = run
        return run

    def _start_background(self, channel: Channel, exec_id: str, program: Program, descriptors: list[int]) -> Exec:
        if program.terminal:
            raise Fault("unsupported", "a background command with a terminal")
        out, err = log_paths(self._config, exec_id)
        os.makedirs(os.path.dirname(out), mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        files: list[int] = []
        try:
            files.append(os.open(out, flags, 0o600))
            files.append(os.open(err, flags, 0o600))
            stdin = descriptors[0] if descriptors else self._null
            run = self._spawn(exec_id, program, (stdin, files[0], files[1]), background=True)
        except BaseException:
            for path in (out, err)[: len(files)]:
                os.unlink(path)
            raise
        finally:
            for fd in files:
                os.close(fd)
        channel.answer({"pid": run.pid})
        return run


def log_paths(config: AgentConfig, exec_id: str) -> tuple[bytes, bytes]:
    directory = locate(encode(config.exec_dir), config)
    return directory + b"/" + exec_id.encode() + b".out", directory + b"/" + exec_id.encode() + b".err"


class ExecHandler(Handler):
    """The channel of a foreground command. It is over when the command has died and its streams are sent."""

    def __init__(self, execs: Execs, loop: Loop, channel: Channel, run: Exec, stdio: Stdio) -> None:
        self._execs = execs
        self._channel = channel
        self._run = run
        self._terminal = stdio.terminal
        self._is_terminal = stdio.terminal is not None
        self._killing = False
        self._sink = Sink(loop, channel, stdio.stdin) if stdio.stdin is not None else None
        self._sources = [Source(loop, channel, stream, fd, self._source_finished) for stream, fd in stdio.outputs]

    def data(self, stream: int, data: bytes) -> None:
        if self._sink is None or stream != STDIN:
            super().data(stream, data)
        else:
            self._sink.data(data)

    def eof(self, stream: int) -> None:
        if stream != STDIN and not self._is_terminal:
            for source in self._sources:
                if source.stream == stream:
                    source.finish(None)
        elif self._sink is None or stream != STDIN:
            super().eof(stream)
        elif self._is_terminal:
            self._sink.data(b"\x04")  # what a person types to say so
        else:
            self._sink.eof()

    def control(self, body: Json) -> None:
        order = body.get("order")
        if order == "signal":
            with contextlib.suppress(Fault, OSError):
                self._execs.send_signal(self._run, requests.number(body, "signal", low=1, high=64))
        elif order == "resize":
            with contextlib.suppress(Fault, OSError):  # there is no answer; whoever wants one uses the request
                self.resize(body)
        elif order == "kill":
            self._kill()

    def resize(self, size: Json) -> None:
        if not self._is_terminal:
            raise Fault("invalid_argument", "the command has no terminal")
        rows_and_columns = checked_size(size)
        if self._terminal is not None:
            set_size(self._terminal, rows_and_columns)

    def writable(self) -> None:
        for source in self._sources:
            source.resume()

    def ended(self, status: Json) -> None:
        if not self._killing and all(source.done for source in self._sources):
            self._finish()
            self._channel.conclude(status)  # the host is woken once
            return
        self._channel.exit(status)
        for source in self._sources:
            source.cut()
        self._source_finished(None)

    def close(self) -> None:
        for source in self._sources:
            source.close()
        self._finish()
        if self._run.status is None:
            self._kill()
        elif not self._killing:
            self._channel.end()

    def _kill(self) -> None:
        if not self._killing:
            self._killing = True
            self._execs.kill_tree(self._run, self._killed)

    def _killed(self, survivors: int) -> None:
        self._killing = False
        if self._run.status is None:
            # Its main process cannot be killed (another user's, or stuck in the kernel): say so and let go.
            self._finish()
            self._channel.end(Fault("sandbox", f"{survivors} processes of the command could not be killed"))
        self._source_finished(None)

    def _source_finished(self, error: OSError | None) -> None:
        dead = self._run.status is not None and not self._killing
        if dead and all(source.done for source in self._sources):
            self._finish()
            self._channel.end()

    def _finish(self) -> None:
        for source in self._sources:
            source.close()
        if self._sink is not None:
            self._sink.close()
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None


def checked_size(size: Any) -> tuple[int, int]:
    if not isinstance(size, dict):
        raise Fault("invalid_argument", "the size of a terminal must be an object")
    fields = cast("Json", size)
    rows = requests.number(fields, "rows", low=1, high=65535)
    return rows, requests.number(fields, "columns", low=1, high=65535)


def set_size(terminal: int, rows_and_columns: tuple[int, int]) -> None:
    # The kernel sends SIGWINCH.
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, pack_struct("HHHH", *rows_and_columns, 0, 0))
