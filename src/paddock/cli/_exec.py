"""Commands in sandboxes: `paddock exec`, `run`, which ends its sandbox, and `sh`, a shell.

A command behaves like a local one: immediate output, its stdin, its own exit code.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import threading
import time

from paddock import client
from paddock.errors import (
    ApprovalNeededError,
    InvalidArgumentError,
    PaddockError,
    ProgramNotExecutableError,
    ProgramNotFoundError,
)

from . import _render
from ._answer import answer, perform
from ._progress import progress
from ._usage import argument, exclusive, group, usage
from ._values import COMMAND, HOW, IMAGES, SANDBOX, command, output, sandbox_spec, spec
from ._verbs import WrongUsage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    from paddock.model import AuditRecord, ExecResult, Limit

    R = TypeVar("R")

_SHELL = "command -v bash >/dev/null && exec bash -l; exec sh -l"
_SOON_SECONDS = 0.25


@usage(
    SANDBOX,
    argument("-d", "--detach", action="store_true", help="leave it running and print its id, for `logs`"),
    COMMAND,
)
def verb_exec(options: argparse.Namespace) -> int:
    """Run a command in a sandbox. At its end paddock kills its remaining processes. Options come first.

    Examples:
        paddock exec box -- pytest -q
        paddock exec box -i -- python3 - <cell.py
        paddock exec box -d -- ./server
    """
    argv = _checked(options)
    if not options.detach:
        return _run(client.Sandbox.connect(options.sandbox), options, argv)
    if options.tty or options.interactive:
        raise InvalidArgumentError("nobody types for a command that is left running", hint="leave out -d, or -t and -i")
    sandbox = client.Sandbox.connect(options.sandbox)
    with _approved(options, lambda: sandbox.start(argv, background=True, **_place(options))) as process:
        return answer(options, {"sandbox": sandbox.id, "exec": process.id}, process.id)


@usage(
    argument("--keep", action="store_true", help="if the exit code isn't 0, leave the sandbox until its TTL ends"),
    argument("--entrypoint", metavar="PROGRAM", help="instead of the image's; '' runs the command as it is"),
    group(
        "afterwards, about the directory of --mount",
        exclusive(
            argument("--diff", action="store_true", help="list what changed in it, on stderr"),
            argument(
                "--patch", type=output, metavar="FILE", help="write what changed to FILE, for `git apply`; - is stdout"
            ),
            argument(
                "--promote", action="store_true", help="write what changed to the directory, if the exit code is 0"
            ),
        ),
    ),
    sandbox_spec(),
    COMMAND,
)
def verb_run(options: argparse.Namespace) -> int:
    """Run a command in a new sandbox and kill the sandbox.

    It prints output at once. In an OCI image, the command is the arguments of the image's entrypoint. Without a command
    the image's own runs.

    Examples:
        paddock run -- python3 -c 'print(6 * 7)'
        paddock run --network pypi --mount . -- sh -c 'pip install -q . && pytest -q'
        paddock run --mount . --diff -- ./untrusted.sh
    """
    _complete(options)
    argv = _checked(options)
    asks = options.diff or options.patch or options.promote
    if asks and not options.mount:
        raise WrongUsage("--diff, --patch and --promote are about a mounted directory", "paddock run --mount . --diff")
    if options.json and options.patch == "-":
        raise WrongUsage("stdout holds the patch or a document, not both", "--patch FILE")
    with contextlib.ExitStack() as end:
        sandbox = end.enter_context(_disposable(options, persistent=options.keep))
        code = _run(sandbox, options, argv, ends=not asks and not options.keep)
        if asks:
            _take_out(sandbox, options, code)
        if code and options.keep:
            end.pop_all()
            _render.note(f"{sandbox.id} is kept for {_render.span(options.ttl)}: paddock exec {sandbox.id} -- COMMAND")
        return code


def _take_out(sandbox: client.Sandbox, options: argparse.Namespace, code: int) -> None:
    """Carry out --diff, --patch or --promote."""
    if options.promote and code:
        return _render.note(f"nothing was promoted: the command ended with exit code {code}")
    if options.promote:
        return _render.note(f"{_render.count(len(sandbox.promote_mount().applied), 'change')} promoted")
    diff = sandbox.diff_mount(patch=options.patch is not None)
    if options.patch is not None:
        with open(1 if options.patch == "-" else options.patch, "wb", closefd=options.patch != "-") as file:
            file.write(diff.patch or b"")
    for change in diff.changes:
        _render.note(f"{change.kind} {change.path}")
    if not diff.changes:
        _render.note("nothing changed")
    return None


def _complete(options: argparse.Namespace) -> None:
    """Put the image's entrypoint before the command, or its own command in its place, as `docker run` does.
    InvalidArgumentError."""
    if not options.template.startswith(IMAGES):
        if options.entrypoint is not None:
            raise InvalidArgumentError(
                f"template {options.template!r} is not an image, and has no entrypoint",
                hint="--template oci:DIR, or another image",
            )
        return
    given = command(options.command)
    if options.entrypoint == "" and given:
        options.command = given
        return
    from paddock.model import PullImage

    with progress("looking at the image"):
        image = perform(PullImage(reference=client.absolute_template(options.template), refresh=False))
    if options.entrypoint is None:
        entrypoint, default = image.entrypoint, image.command
    else:  # with another entrypoint the image's command makes no sense (docker run --entrypoint)
        entrypoint, default = tuple(filter(None, (options.entrypoint,))), ()
    argv = [*entrypoint, *(given or default)]
    if not argv:
        raise InvalidArgumentError(
            "the image has no command of its own", hint="paddock run --image IMAGE -- COMMAND ..."
        )
    if entrypoint == image.entrypoint and not given and options.cwd is None:
        options.cwd = image.command_workdir
    options.command = argv


@usage(
    argument("sandbox", nargs="?", metavar="ID", help="id, unique prefix of one, or name"),
    group("the shell", HOW),
    sandbox_spec(ttl_seconds=3600.0),
    tty=False,
    interactive=True,
    wait=False,
)
def verb_sh(options: argparse.Namespace) -> int:
    """Open a login shell in the sandbox ID.

    Without ID, open it in a new sandbox (with a TTL of an hour), which ends with the shell. It behaves like ssh: all
    keys go inside, Ctrl-C and Ctrl-Z too. At the beginning of a line ~. ends the session, ~^Z suspends it, and ~?
    prints help. Without a terminal the shell reads its commands from stdin.

    Examples:
        paddock sh box
        paddock sh --mount .
    """
    argv, stays = ["/bin/sh", "-c", _SHELL], options.sandbox is not None
    with contextlib.nullcontext(client.Sandbox.connect(options.sandbox)) if stays else _disposable(options) as sandbox:
        if _is_terminal() and not options.json:
            return _on_terminal(sandbox, options, argv, leaves=stays)
        return _run(sandbox, options, argv)


def _disposable(options: argparse.Namespace, *, persistent: bool = False) -> client.Sandbox:
    """Return a new sandbox, for a `with` block that ends it."""
    with progress("making the sandbox"):
        return client.Sandbox.create(**spec(options), persistent=persistent)


def _checked(options: argparse.Namespace) -> list[str]:
    """Check the command before creating anything for it. Raises InvalidArgumentError."""
    argv = command(options.command)
    if not argv:
        sandbox = getattr(options, "sandbox", None)
        raise WrongUsage("no command was given", f"paddock {f'exec {sandbox}' if sandbox else 'run'} -- COMMAND ...")
    if options.tty and options.json:
        raise InvalidArgumentError("a terminal has no JSON", hint="leave out -t or --json")
    if options.tty and not _is_terminal():
        raise InvalidArgumentError(
            "-t needs a terminal, and stdin is none", hint="leave out -t: stdin is passed as it is"
        )
    return argv


def _place(options: argparse.Namespace, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Return directory, environment, user and timeout of the command."""
    return {
        "cwd": options.cwd,
        "env": {**(env or {}), **dict(options.env)},
        "user": options.user,
        "timeout": options.timeout,
    }


def _is_terminal() -> bool:
    """Return whether stdin is a terminal. Python's stream is None if the parent has closed it."""
    return sys.stdin is not None and os.isatty(0)  # pyright: ignore[reportUnnecessaryComparison]


def _passes_stdin(options: argparse.Namespace) -> bool:
    return options.interactive or (sys.stdin is not None and not os.isatty(0))  # pyright: ignore[reportUnnecessaryComparison]


def _run(sandbox: client.Sandbox, options: argparse.Namespace, argv: list[str], *, ends: bool = False) -> int:
    """Run a command. `ends`: the caller kills the sandbox next, with the command's remaining processes."""
    began = time.time()
    try:
        if options.json:
            return _as_json(sandbox, options, argv)
        if options.tty:
            return _on_terminal(sandbox, options, argv)
        return _live(sandbox, options, argv, ends=ends)
    except (ProgramNotFoundError, ProgramNotExecutableError) as error:
        if _names_image(argv[0]) and hasattr(options, "template"):
            error.hint = f"to run it as an image: paddock run --image {argv[0]} -- COMMAND"
        _render.failure(error, as_json=options.json)
        return 127 if isinstance(error, ProgramNotFoundError) else 126  # as a shell
    finally:
        if sandbox.policy is not None and not options.json:
            _tell_refused(sandbox, began)


def _names_image(word: str) -> bool:
    """Tell whether a word that isn't a program looks like the image of `docker run`."""
    import re

    return (
        re.fullmatch(r"[a-z0-9][a-z0-9./_-]*:[\w.-]+|alpine|busybox|debian|fedora|node|python|ubuntu", word) is not None
    )


def _tell_refused(sandbox: client.Sandbox, since: float) -> None:
    """Say how many requests of the sandbox its policy has refused."""
    from paddock.model import ListAudit

    with contextlib.suppress(PaddockError):  # the sandbox or the daemon has ended: the command's own error says so
        records = perform(ListAudit(sandbox=sandbox.id, trouble=True, since=since))
        count = sum(record.allowed is False and record.principal is None and not _is_told(record) for record in records)
        if count:
            were = "was" if count == 1 else "were"
            _render.note(f"{_render.count(count, 'request')} {were} refused: paddock why {sandbox.id}")


def _is_told(record: AuditRecord) -> bool:
    """Return whether it is the command's own question: its error says so, or the answer was yes."""
    return record.action == "policy.command" and "approval" in record.detail


def _on_terminal(sandbox: client.Sandbox, options: argparse.Namespace, argv: list[str], *, leaves: bool = False) -> int:
    """Run the command on this terminal, like a local one. `leaves`: its child processes go on after its end."""
    from ._terminal import TerminalInput, size

    here = {name: os.environ[name] for name in ("TERM", "COLORTERM") if name in os.environ}
    with _approved(options, lambda: sandbox.start(argv, stdin=True, pty=size(), **_place(options, here))) as process:
        keyboard = TerminalInput(
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
    _tell(status.limit)
    return status.exit_code


def _as_json(sandbox: client.Sandbox, options: argparse.Namespace, argv: list[str]) -> int:
    given = sys.stdin.buffer.read() if _passes_stdin(options) else None
    result = _approved(options, lambda: sandbox.exec(argv, input=given, **_place(options)))
    _render.document(_described(sandbox, result))
    return result.exit_code


def _approved(options: argparse.Namespace, ask: Callable[[], R]) -> R:
    """Return the result of `ask`. With --wait, ask again after the approval."""
    try:
        return ask()
    except ApprovalNeededError as error:
        if not options.wait:
            if not hasattr(options, "sandbox"):  # the sandbox ends with this command: nothing can ask again
                error.hint = "paddock run --wait, and answer from another terminal: paddock approvals ls"
            raise
        _render.note(f"{error.message}. Waiting for: paddock approvals approve {error.approval_id}")
        approval = error.approval_id
    client.approvals.wait(approval)
    return ask()


def _described(sandbox: client.Sandbox, result: ExecResult) -> dict[str, object]:
    shown = ("exit_code", "signal", "limit", "duration_seconds", "stdout", "stderr")
    named = {"sandbox": sandbox.id, "level": sandbox.level, "exec": result.id}
    omitted = result.out.omitted_bytes + result.err.omitted_bytes
    return {**named, **{name: getattr(result, name) for name in shown}, "omitted_bytes": omitted}


def _live(sandbox: client.Sandbox, options: argparse.Namespace, argv: list[str], *, ends: bool) -> int:
    given = _beginning() if _passes_stdin(options) else None
    with _approved(options, lambda: sandbox.start(argv, stdin=given is not None, **_place(options))) as process:
        pumps = [Pump(process.stdout, 1, process), Pump(process.stderr, 2, process)]
        if given is not None:
            threading.Thread(target=_feed, args=(process.stdin, given), daemon=True).start()
        status = process.wait()
        if not (ends and all(pump.has_ended() for pump in pumps)):
            process.kill()  # what it left behind would hold our pipes open
        for pump in pumps:
            pump.finish()
    _tell(status.limit)
    return status.exit_code


def _tell(limit: Limit | None) -> None:
    if limit is not None:
        from ._audit import REMEDY

        _render.note(f"the command reached its limit of {limit.replace('_', ' ')}: {REMEDY[limit]}")


class Pump:
    """Copies one stream on a thread. If the reader has gone, it kills `process`."""

    def __init__(self, source: Iterable[bytes], descriptor: int, process: client.Process | None = None) -> None:
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
    """Return the present content of stdin, which may be empty. None at its end: then the command has no stdin."""
    stdin = select.poll()
    stdin.register(0, select.POLLIN)
    try:
        return (os.read(0, 1 << 16) or None) if stdin.poll(0) else b""
    except OSError:
        return None


def _feed(sink: client.Writer, data: bytes) -> None:
    with contextlib.suppress(OSError, PaddockError):
        if data:
            sink.write(data)
        while data := os.read(0, 1 << 16):
            sink.write(data)
        sink.close()
