"""Garbage, and the space in the pool."""

from __future__ import annotations

from .value import Value


class PoolSpace(Value):
    """The space in the pool, in bytes. If the pool is an image it grows, so its host decides how much is available."""

    used_bytes: int
    available_bytes: int
    image_bytes: int | None = None
    """The image's size on its host's disk. None: the pool isn't an image."""

    @property
    def fill(self) -> float:
        """The used fraction of the usable space."""
        return self.used_bytes / max(1, self.used_bytes + self.available_bytes)


class GarbageItem(Value):
    """A candidate for deletion.

    Kinds: unfinished, orphan, template, image, output, base, repository, workspace or packages.
    """

    what: str
    kind: str
    why: str
    bytes: int | None = None
    """None: paddock didn't count them. Copies that share content each count it."""
    kept_because: str | None = None
    """None: it no longer exists, or after a dry run: a real run would delete it."""


class GarbageReport(Value):
    """The candidates, in the order of deletion."""

    items: tuple[GarbageItem, ...]
    dry_run: bool
    before: PoolSpace
    after: PoolSpace
