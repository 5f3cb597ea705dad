"""`paddock exec`: a command in a sandbox that lives."""

from __future__ import annotations

import argparse

from paddock.errors import InvalidArgument

from . import _render
from ._values import add_exec, add_json


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = "Runs a command in a sandbox. What it leaves running is killed at its end. Options come first."
    add_json(parser)
    parser.add_argument("sandbox", metavar="ID", help="id, unique prefix of one, or name")
    parser.add_argument("-d", "--detach", action="store_true", help="leave it running and print its id, for `logs`")
    add_exec(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock import Sandbox

    from ._stream import checked, run_command

    argv = checked(options)
    if options.detach:
        return _detach(options, argv)
    return run_command(Sandbox.connect(options.sandbox), options)


def _detach(options: argparse.Namespace, argv: list[str]) -> int:
    from paddock import Sandbox

    if options.tty or options.interactive:
        raise InvalidArgument("nobody types for a command that is left running", hint="leave out -d, or -t and -i")
    sandbox = Sandbox.connect(options.sandbox)
    with sandbox.start(
        argv,
        background=True,
        cwd=options.cwd,
        env=dict(options.env),
        user=options.user,
        timeout_seconds=options.timeout,
    ) as process:
        if options.json:
            _render.document({"sandbox": sandbox.id, "exec": process.id})
        else:
            _render.line(process.id)
    return 0
