"""Commands in sandboxes: `paddock exec`, `run`, whose sandbox is gone afterwards, and `sh`, a shell."""

from __future__ import annotations

import argparse

from paddock import client
from paddock.errors import InvalidArgument

from . import _render
from ._answer import answer
from ._values import add_command, add_json, add_place, add_sandbox, add_spec, seconds


def add_exec(parser: argparse.ArgumentParser) -> None:
    parser.description = "Runs a command in a sandbox. What it leaves running is killed at its end. Options come first."
    add_json(parser)
    add_sandbox(parser)
    parser.add_argument("-d", "--detach", action="store_true", help="leave it running and print its id, for `logs`")
    add_command(parser)
    parser.set_defaults(run=execute)


def execute(options: argparse.Namespace) -> int:
    from ._stream import checked, run_command

    argv = checked(options)
    if options.detach:
        return _detach(options, argv)
    return run_command(client.Sandbox.connect(options.sandbox), options)


def _detach(options: argparse.Namespace, argv: list[str]) -> int:
    if options.tty or options.interactive:
        raise InvalidArgument("nobody types for a command that is left running", hint="leave out -d, or -t and -i")
    sandbox = client.Sandbox.connect(options.sandbox)
    with sandbox.start(
        argv,
        background=True,
        cwd=options.cwd,
        env=dict(options.env),
        user=options.user,
        timeout_seconds=options.timeout,
    ) as process:
        return answer(options, {"sandbox": sandbox.id, "exec": process.id}, lambda: _render.line(process.id))


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs a command in a new sandbox and kills the sandbox. Output is passed on as it comes. From an OCI image, the"
        " command is what the image's entrypoint is given, and without one the image's own command runs."
    )
    parser.add_argument("--entrypoint", metavar="PROGRAM", help="instead of the image's; '' runs the command as it is")
    add_spec(parser)
    add_json(parser)
    add_command(parser)
    parser.set_defaults(run=run_once)


def run_once(options: argparse.Namespace) -> int:
    from ._image_command import complete
    from ._stream import checked, disposable, run_command

    complete(options)
    checked(options)
    with disposable(options) as sandbox:
        return run_command(sandbox, options, ends=True)


_SHELL = "command -v bash >/dev/null && exec bash -l; exec sh -l"


def add_sh(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "A login shell in the sandbox ID; without ID, in a new sandbox, which is gone afterwards (its TTL is an hour)."
        " It feels like ssh: all keys go inside, Ctrl-C and Ctrl-Z too; at the beginning of a line ~. ends the session,"
        " ~^Z suspends it, ~? tells. Without a terminal the shell reads its commands from stdin."
    )
    parser.add_argument("sandbox", nargs="?", metavar="ID", help="id, unique prefix of one, or name")
    group = parser.add_argument_group("the shell")
    group.add_argument("--timeout", type=seconds, metavar="TIME", help="ends it with all that it started")
    add_place(group)
    add_spec(parser, ttl_seconds=3600.0)
    add_json(parser)
    parser.set_defaults(run=shell, tty=False, interactive=True)


def shell(options: argparse.Namespace) -> int:
    from ._stream import disposable

    if options.sandbox is not None:
        return _shell(client.Sandbox.connect(options.sandbox), options, leaves=True)
    with disposable(options) as sandbox:
        return _shell(sandbox, options, leaves=False)


def _shell(sandbox: client.Sandbox, options: argparse.Namespace, *, leaves: bool) -> int:
    from ._stream import is_terminal, on_terminal, run_command

    options.command = ["/bin/sh", "-c", _SHELL]
    if is_terminal() and not options.json:
        return on_terminal(sandbox, options, options.command, leaves=leaves)
    return run_command(sandbox, options)
