"""Repositories: the cached ones, fetched commits, and the actions on them."""

from __future__ import annotations

from .action import Action
from .ids import RepositoryId
from .value import Value


class Repository(Value):
    """A repository in the cache.

    Times are seconds since the epoch.

    `scope` is `public`, or the principal whose credential opened it. No other principal sees its content.
    """

    id: RepositoryId
    url: str
    scope: str
    default_branch: str | None
    branches: int
    tags: int
    observed_at: float | None
    """The time of the last look at the remote. None: paddock hasn't fetched it yet."""
    used_at: float


class Acquired(Value):
    """A local commit that a repository had at `observed_at` (seconds since the epoch).

    `ref` is the full name that led to it, or None for a request by commit id. `branch` is the name of the branch, if
    `ref` is one.
    """

    repository: RepositoryId
    url: str
    commit: str
    ref: str | None
    branch: str | None
    observed_at: float


class AcquireRepository(Action[Acquired], tag="repository.acquire"):
    """Return the commit to which `ref` led at most `max_age_seconds` ago.

    It fetches the commit if it isn't here.

    `ref` is a branch, a tag, a full name of a ref, or a full commit id. None: the default branch. paddock uses a
    credential in `url` once, and doesn't keep it.
    """

    url: str
    ref: str | None = None
    max_age_seconds: float = 0.0


class ListRepositories(Action[tuple[Repository, ...]], tag="repository.list", repeatable=True):
    """Public ones, and those that are one's own."""


class DeleteRepository(Action[None], tag="repository.delete"):
    """Remove a repository from the cache, by id, a unique prefix of one, or URL.

    It fails while a workspace needs the repository.
    """

    repository: str
