"""Repositories: what is cached of them, what of one was acquired, and what can be asked."""

from __future__ import annotations

from .action import Action
from .ids import RepositoryId
from .value import Value


class Repository(Value):
    """A repository as it is cached here. Times are seconds since the epoch.

    `scope` is `public`, or the principal whose credential was needed: nobody else sees what is in it.
    """

    id: RepositoryId
    url: str
    scope: str
    default_branch: str | None
    branches: int
    tags: int
    observed_at: float | None
    """When it was last seen what the remote has. None: it was not fetched yet."""
    used_at: float


class Acquired(Value):
    """A commit that a repository had at `observed_at` (seconds since the epoch), and that is here.

    `ref` is the full name that led to it, None if it was asked for by its id; `branch` the name of the branch, if `ref`
    is one.
    """

    repository: RepositoryId
    url: str
    commit: str
    ref: str | None
    branch: str | None
    observed_at: float


class AcquireRepository(Action[Acquired], tag="repository.acquire"):
    """The commit that `ref` led to at most `max_age_seconds` ago, fetched if it is not here.

    `ref` is a branch, a tag, a full name of a ref or a full id of a commit; None: the default branch. A credential in
    `url` is used for this once, and kept nowhere."""

    url: str
    ref: str | None = None
    max_age_seconds: float = 0.0


class ListRepositories(Action[tuple[Repository, ...]], tag="repository.list", repeatable=True):
    """Public ones, and those that are one's own."""


class DeleteRepository(Action[None], tag="repository.delete"):
    """From the cache: by id, unique prefix of one, or URL. Refused while something needs it."""

    repository: str
