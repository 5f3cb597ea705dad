"""`paddock run`: one command in a sandbox of its own, which is gone afterwards."""

from __future__ import annotations

import argparse

from ._values import add_exec, add_json, add_spec


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs a command in a new sandbox and kills the sandbox. Output is passed on as it comes. From an OCI image, the"
        " command is what the image's entrypoint is given, and without one the image's own command runs."
    )
    parser.add_argument("--entrypoint", metavar="PROGRAM", help="instead of the image's; '' runs the command as it is")
    add_spec(parser)
    add_json(parser)
    add_exec(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from ._image_command import complete
    from ._stream import checked, disposable, run_command

    complete(options)
    checked(options)
    with disposable(options) as sandbox:
        return run_command(sandbox, options, ends=True)
