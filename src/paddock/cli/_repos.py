"""`paddock repos`: list the repositories in the cache, fetch one, remove some."""

from __future__ import annotations

import argparse
import os

from paddock import model

from . import _render
from ._answer import answer, listing, perform
from ._progress import progress
from ._usage import Verbs, argument, usage
from ._values import age


@usage()
def _list(options: argparse.Namespace) -> int:
    """List the repositories in the cache."""
    found = perform(model.ListRepositories())
    headings = ("ID", "URL", "SCOPE", "DEFAULT", "BRANCHES", "TAGS", "SEEN")
    return listing(options, found, headings, _row, "no repositories: paddock up URL --task NAME")


def _row(one: model.Repository) -> tuple[str, ...]:
    seen = _render.when(one.observed_at)
    return one.id, one.url, one.scope, one.default_branch or "", str(one.branches), str(one.tags), seen


@usage(
    argument("url", metavar="URL", help="https, http or git; or a directory of this machine"),
    argument("ref", nargs="?", metavar="REF", help="a branch, a tag or a full id (default: its own branch)"),
    argument("--max-age", type=age, default=0.0, metavar="TIME", help="what was seen that long ago is new enough"),
)
def _fetch(options: argparse.Namespace) -> int:
    """Fetch the missing parts of a repository into the cache, and print the commit of a ref."""
    url = options.url if ":" in options.url else os.path.abspath(options.url)
    with progress("looking at the repository"):
        acquired = perform(model.AcquireRepository(url=url, ref=options.ref, max_age_seconds=options.max_age))
    return answer(options, acquired, lambda: _render.line(f"{acquired.commit} {acquired.ref or ''}".rstrip()))


@usage(argument("repository", nargs="+", metavar="REPOSITORY", help="id, unique prefix of one, or URL"))
def _remove(options: argparse.Namespace) -> int:
    """Remove repositories from the cache, unless something needs them."""
    for repository in options.repository:
        perform(model.DeleteRepository(repository=repository))
    return answer(options, options.repository)


verb_repos = Verbs(ls=_list, fetch=_fetch, rm=_remove)
