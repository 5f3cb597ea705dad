"""Repositories: what is cached of them, and what of one was acquired."""

from __future__ import annotations

import msgspec

from .ids import RepositoryId


class Repository(msgspec.Struct, frozen=True, kw_only=True):
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


class Acquired(msgspec.Struct, frozen=True, kw_only=True):
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
