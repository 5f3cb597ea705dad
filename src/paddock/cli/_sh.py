"""`paddock sh`: a shell inside, on this terminal."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ._values import add_json, add_place, add_spec, seconds

if TYPE_CHECKING:
    from paddock.client import Sandbox

_SHELL = "command -v bash >/dev/null && exec bash -l; exec sh -l"


def add(parser: argparse.ArgumentParser) -> None:
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
    parser.set_defaults(run=run, tty=False, interactive=True)


def run(options: argparse.Namespace) -> int:
    from paddock import Sandbox

    from ._stream import disposable

    if options.sandbox is not None:
        return _shell(Sandbox.connect(options.sandbox), options, leaves=True)
    with disposable(options) as sandbox:
        return _shell(sandbox, options, leaves=False)


def _shell(sandbox: Sandbox, options: argparse.Namespace, *, leaves: bool) -> int:
    from ._stream import is_terminal, on_terminal, run_command

    options.command = ["/bin/sh", "-c", _SHELL]
    if is_terminal() and not options.json:
        return on_terminal(sandbox, options, options.command, leaves=leaves)
    return run_command(sandbox, options)
