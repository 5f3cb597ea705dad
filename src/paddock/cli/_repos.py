"""`paddock repos`: which repositories are cached; fetch one, remove some."""

from __future__ import annotations

import argparse
import os

from paddock import model

from . import _render
from ._answer import answer, listing, perform
from ._progress import progress
from ._values import add_json, age


def add_repos(parser: argparse.ArgumentParser) -> None:
    repos = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    every = repos.add_parser("ls", help="what is cached", allow_abbrev=False)
    add_json(every, list_all)
    _add_fetch(
        repos.add_parser(
            "fetch",
            help="bring one up to date, and print the commit that a name leads to",
            description="Fetches a repository into the cache, or only what is new, and prints the commit.",
            allow_abbrev=False,
        )
    )
    remove = repos.add_parser("rm", help="from the cache, unless something needs it", allow_abbrev=False)
    remove.add_argument("repository", nargs="+", metavar="REPOSITORY", help="id, unique prefix of one, or URL")
    add_json(remove, remove_some)


def _add_fetch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="https, http or git; or a directory of this machine")
    parser.add_argument("ref", nargs="?", metavar="REF", help="a branch, a tag or a full id (default: its own branch)")
    parser.add_argument(
        "--max-age", type=age, default=0.0, metavar="TIME", help="what was seen that long ago is new enough"
    )
    add_json(parser, fetch)


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
