"""`paddock branch`: what a workspace holds, on a branch of its remote."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from . import _render
from ._values import add_json, add_workspace

if TYPE_CHECKING:
    from paddock.model import PushedBranch


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Pushes what a workspace holds to where it came from, by what your git proves itself with. What is"
        " not committed becomes a commit; the workspace stays as it is. Prints the commit."
    )
    add_workspace(parser)
    parser.add_argument("name", nargs="?", metavar="NAME", help="the branch; default: the last one, or paddock/TASK")
    add_commit(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def add_commit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--message", help="of the commit, if one has to be made")
    parser.add_argument("--author", metavar="NAME <MAIL>", help="of that commit; default: yours, as git knows it")
    parser.add_argument("--force", action="store_true", help="take the place of what others have pushed there")


def run(options: argparse.Namespace) -> int:
    pushed = push(options, options.name)
    if options.json:
        _render.document(pushed)
        return 0
    _render.line(pushed.commit)
    _render.note(
        f"{pushed.branch} of {pushed.repository} {'is' if pushed.pushed else 'was already'} at {pushed.commit}"
    )
    return 0


def push(options: argparse.Namespace, branch: str | None) -> PushedBranch:
    from paddock.client import default_transport
    from paddock.model import PushBranch

    return default_transport().perform(
        PushBranch(
            workspace=options.workspace,
            branch=branch,
            message=options.message,
            author=options.author or _author(),
            force=options.force,
        )
    )


def _author() -> str | None:
    """Who the user is to his git, outside of any repository."""
    import subprocess

    said: list[str] = []
    for name in ("user.name", "user.email"):
        try:
            asked = subprocess.run(
                ["git", "config", "--global", "--get", name], capture_output=True, text=True, check=False, cwd="/"
            )
        except OSError:
            return None
        said.append(asked.stdout.strip())
    return f"{said[0]} <{said[1]}>" if all(said) else None
