"""`paddock pr`: a pull request for what a workspace holds."""

from __future__ import annotations

import argparse

from . import _render
from ._branch import add_commit, push
from ._values import add_json, add_workspace


def add(parser: argparse.ArgumentParser) -> None:
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
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import OpenPullRequest

    options.message = options.message or options.title
    pushed = push(options, options.branch)
    request = default_transport().perform(
        OpenPullRequest(
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
