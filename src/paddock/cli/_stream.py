"""Run one command in a sandbox as if it ran here: bytes at once, stdin passed, its own exit code."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import threading
from functools import partial

from paddock.errors import InvalidArgument, PaddockError, RequestError

from . import _render
from ._progress import progress
from ._values import command, limits, mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from paddock.client import Process, Sandbox, Writer
    from paddock.model import ExecResult, Limit

_SOON_SECONDS = 0.25
# As the shell says it.
_START_FAILED = {
    "ENOENT": 127,
    "ENOTDIR": 127,
    "EACCES": 126,
    "EPERM": 126,
    "ENOEXEC": 126,
    "EISDIR": 126,
}


def run_command(sandbox: Sandbox, options: argparse.Namespace, *, ends: bool = False) -> int:
    """`ends`: the sandbox is killed next, and with it what the command has left behind."""
    argv = checked(options)
    way = _as_json if options.json else on_terminal if options.tty else partial(_live, ends=ends)
    try:
        return way(sandbox, options, argv)
    except RequestError as error:
        code = _START_FAILED.get(str(error.details.get("errno")))
        if code is None:
            raise
        _render.failure(error, as_json=options.json)
        return code


def is_terminal() -> bool:
    """Return whether stdin is a terminal. (A stream that was closed before we were started is None.)"""
    return sys.stdin is not None and os.isatty(0)  # pyright: ignore[reportUnnecessaryComparison]


def checked(options: argparse.Namespace) -> list[str]:
    """The command, before anything is made for it. InvalidArgument."""
    argv = command(options.command)
    if not argv:
        raise InvalidArgument("no command was given", hint="paddock run -- COMMAND ...")
    if options.tty and options.json:
        raise InvalidArgument("a terminal has no JSON", hint="leave out -t or --json")
    if options.tty and not is_terminal():
        raise InvalidArgument("-t needs a terminal, and stdin is none", hint="leave out -t: stdin is passed as it is")
    return argv


def disposable(options: argparse.Namespace) -> Sandbox:
    """A new one, for a `with` block at whose end it is gone."""
    from paddock import Sandbox

    with progress("making the sandbox"):
        return Sandbox.create(
            options.template,
            level=options.level,
            ttl_seconds=options.ttl,
            limits=limits(options),
            mounts=mounts(options),
            policy=options.policy,
            snapshot=options.snapshot,
        )


def on_terminal(sandbox: Sandbox, options: argparse.Namespace, argv: list[str], *, leaves: bool = False) -> int:
    """As if the command ran here, on this terminal. `leaves`: what it started lives on when it has ended by itself."""
    from ._terminal import Keyboard, size

    here = {name: os.environ[name] for name in ("TERM", "COLORTERM") if name in os.environ}
    with sandbox.start(
        argv,
        stdin=True,
        pty=size(),
        cwd=options.cwd,
        env=here | dict(options.env),
        user=options.user,
        timeout_seconds=options.timeout,
    ) as process:
        keyboard = Keyboard(
            process.stdin.write, lambda new: process.resize(rows=new.rows, columns=new.columns), process.kill
        )
        try:
            with keyboard.lent():
                pump = Pump(process.stdout, 1, process)
                status = process.wait()
                if not leaves:
                    process.kill()
                pump.finish()
        except PaddockError:
            _render.raw(2, b"\n")  # the cursor stands somewhere
            raise
    if status.limit is not None:
        _tell(status.limit)
    return status.exit_code


def _as_json(sandbox: Sandbox, options: argparse.Namespace, argv: list[str]) -> int:
    result = sandbox.exec(
        argv,
        cwd=options.cwd,
        env=dict(options.env),
        user=options.user,
        timeout_seconds=options.timeout,
        input=sys.stdin.buffer.read() if _passes_stdin(options) else None,
    )
    _render.document(_described(sandbox, result))
    return result.exit_code


def _described(sandbox: Sandbox, result: ExecResult) -> dict[str, object]:
    return {
        "sandbox": sandbox.id,
        "level": sandbox.level,
        "exec": result.id,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "limit": result.limit,
        "duration_seconds": result.duration_seconds,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "omitted_bytes": result.out.omitted_bytes + result.err.omitted_bytes,
    }


def _live(sandbox: Sandbox, options: argparse.Namespace, argv: list[str], *, ends: bool) -> int:
    given = _beginning() if _passes_stdin(options) else None
    with sandbox.start(
        argv,
        stdin=given is not None,
        cwd=options.cwd,
        env=dict(options.env),
        user=options.user,
        timeout_seconds=options.timeout,
    ) as process:
        pumps = [Pump(process.stdout, 1, process), Pump(process.stderr, 2, process)]
        if given is not None:
            threading.Thread(target=_feed, args=(process.stdin, given), daemon=True).start()
        status = process.wait()
        if not (ends and all(pump.has_ended() for pump in pumps)):
            process.kill()  # what it left behind would hold our pipes open
        for pump in pumps:
            pump.finish()
    if status.limit is not None:
        _tell(status.limit)
    return status.exit_code


def _tell(limit: Limit) -> None:
    from ._why import REMEDY

    _render.note(f"the command reached its limit of {limit.replace('_', ' ')}: {REMEDY[limit]}")


def _passes_stdin(options: argparse.Namespace) -> bool:
    return options.interactive or (sys.stdin is not None and not os.isatty(0))  # pyright: ignore[reportUnnecessaryComparison]


class Pump:
    """Copies one stream on a thread. If nobody takes the bytes any more, `process` is killed."""

    def __init__(self, source: Iterable[bytes], descriptor: int, process: Process | None = None) -> None:
        self._source, self._descriptor, self._process = source, descriptor, process
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def has_ended(self) -> bool:
        """Wait for the end a short time."""
        self._thread.join(_SOON_SECONDS)
        return not self._thread.is_alive()

    def finish(self) -> None:
        self._thread.join()
        if self._problem is not None:
            raise self._problem

    def _copy(self) -> None:
        try:
            for chunk in self._source:
                _render.raw(self._descriptor, chunk)
        except (OSError, PaddockError) as error:
            self._problem = error
            if self._process is not None:
                with contextlib.suppress(PaddockError):
                    self._process.kill()


def _beginning() -> bytes | None:
    """What stdin holds now, perhaps nothing yet. None at its end: then the command has no stdin."""
    stdin = select.poll()
    stdin.register(0, select.POLLIN)
    try:
        return (os.read(0, 1 << 16) or None) if stdin.poll(0) else b""
    except OSError:
        return None


def _feed(sink: Writer, data: bytes) -> None:
    with contextlib.suppress(OSError, PaddockError):
        if data:
            sink.write(data)
        while data := os.read(0, 1 << 16):
            sink.write(data)
        sink.close()
