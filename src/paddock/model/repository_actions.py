"""What can be asked about repositories."""

from __future__ import annotations

from .action import Action
from .repository import Acquired, Repository


class AcquireRepository(Action[Acquired], frozen=True, tag="repository.acquire"):
    """The commit that `ref` led to at most `max_age_seconds` ago, fetched if it is not here.

    `ref` is a branch, a tag, a full name of a ref or a full id of a commit; None: the default branch. A credential in
    `url` is used for this once, and kept nowhere."""

    url: str
    ref: str | None = None
    max_age_seconds: float = 0.0


class ListRepositories(Action[tuple[Repository, ...]], frozen=True, tag="repository.list"):
    """Public ones, and those that are one's own."""


class DeleteRepository(Action[None], frozen=True, tag="repository.delete"):
    """From the cache: by id, unique prefix of one, or URL. Refused while something needs it."""

    repository: str
