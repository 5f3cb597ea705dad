"""`paddock exec`: a command in a sandbox that lives."""

from __future__ import annotations

import argparse

from ._values import add_exec, add_json


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = "Runs a command in a sandbox. What it leaves running is killed at its end. Options come first."
    add_json(parser)
    parser.add_argument("sandbox", metavar="ID", help="id, unique prefix of one, or name")
    add_exec(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock import Sandbox

    from ._stream import run_command

    return run_command(Sandbox.connect(options.sandbox), options)
