"""`paddock repos`: which repositories are cached; fetch one, remove some."""

from __future__ import annotations

import argparse
import os

from paddock import model

from . import _render
from ._answer import answer, listing, perform
from ._progress import progress
from ._values import Verbs, age


def add_repos(parser: argparse.ArgumentParser) -> None:
    repos = Verbs(parser)
    repos.add("ls", list_all, "what is cached")
    _add_fetch(
        repos.add(
            "fetch",
            fetch,
            "bring one up to date, and print the commit that a name leads to",
            "Fetches a repository into the cache, or only what is new, and prints the commit.",
        )
    )
    remove = repos.add("rm", remove_some, "from the cache, unless something needs it")
    remove.add_argument("repository", nargs="+", metavar="REPOSITORY", help="id, unique prefix of one, or URL")


def _add_fetch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="https, http or git; or a directory of this machine")
    parser.add_argument("ref", nargs="?", metavar="REF", help="a branch, a tag or a full id (default: its own branch)")
    parser.add_argument(
        "--max-age", type=age, default=0.0, metavar="TIME", help="what was seen that long ago is new enough"
    )


def list_all(options: argparse.Namespace) -> int:
    found = perform(model.ListRepositories())
    return listing(options, found, ("ID", "URL", "SCOPE", "DEFAULT", "BRANCHES", "TAGS", "SEEN"), _row)


def _row(one: model.Repository) -> tuple[str, ...]:
    seen = _render.when(one.observed_at)
    return one.id, one.url, one.scope, one.default_branch or "", str(one.branches), str(one.tags), seen


def fetch(options: argparse.Namespace) -> int:
    url = options.url if ":" in options.url else os.path.abspath(options.url)
    with progress("looking at the repository"):
        acquired = perform(model.AcquireRepository(url=url, ref=options.ref, max_age_seconds=options.max_age))
    return answer(options, acquired, lambda: _render.line(f"{acquired.commit} {acquired.ref or ''}".rstrip()))


def remove_some(options: argparse.Namespace) -> int:
    for repository in options.repository:
        perform(model.DeleteRepository(repository=repository))
    return answer(options, options.repository)
