"""What a workspace holds, on a branch of its remote: `paddock branch` and `pr`."""

from __future__ import annotations

import argparse

from paddock import model

from . import _render
from ._answer import perform
from ._values import add_json, add_workspace


def add_branch(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Pushes what a workspace holds to where it came from, by what your git proves itself with. What is"
        " not committed becomes a commit; the workspace stays as it is. Prints the commit."
    )
    add_workspace(parser)
    parser.add_argument("name", nargs="?", metavar="NAME", help="the branch; default: the last one, or paddock/TASK")
    add_commit(parser)
    add_json(parser, branch)


def add_commit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--message", help="of the commit, if one has to be made")
    parser.add_argument("--author", metavar="NAME <MAIL>", help="of that commit; default: yours, as git knows it")
    parser.add_argument("--force", action="store_true", help="take the place of what others have pushed there")


def branch(options: argparse.Namespace) -> int:
    pushed = push(options, options.name)
    if options.json:
        _render.document(pushed)
        return 0
    _render.line(pushed.commit)
    _render.note(
        f"{pushed.branch} of {pushed.repository} {'is' if pushed.pushed else 'was already'} at {pushed.commit}"
    )
    return 0


def push(options: argparse.Namespace, branch: str | None) -> model.PushedBranch:
    return perform(
        model.PushBranch(
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


def add_pr(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Pushes what a workspace holds, as `paddock branch` does, and opens a pull request for that branch:"
        " GitHub, Gitea or Forgejo. If there is an open one, it is that one. Prints its address."
    )
    add_workspace(parser)
    parser.add_argument("--title", required=True)
    parser.add_argument("--body", default="", help="what it says below its title")
    parser.add_argument("--branch", metavar="NAME", help="default: the one pushed last, or paddock/TASK")
    parser.add_argument("--base", metavar="NAME", help="default: the branch that the workspace was opened on")
    parser.add_argument("--draft", action="store_true")
    parser.add_argument("--forge", choices=("github", "gitea"), help="default: it is asked; Forgejo speaks gitea")
    add_commit(parser)
    add_json(parser, pull_request)


def pull_request(options: argparse.Namespace) -> int:
    options.message = options.message or options.title
    pushed = push(options, options.branch)
    request = perform(
        model.OpenPullRequest(
            workspace=options.workspace,
            title=options.title,
            body=options.body,
            branch=pushed.branch,
            base=options.base,
            draft=options.draft,
            forge=options.forge,
        )
    )
    if options.json:
        _render.document(request)
        return 0
    _render.line(_render.escape(request.url))
    what = "opened" if request.created else "was open already"
    _render.note(f"pull request {request.number} of {request.branch} into {request.base} {what}")
    return 0
