"""What nobody needs, and what room there is."""

from __future__ import annotations

from .value import Value


class PoolSpace(Value):
    """Room in the pool, in bytes. Where it is an image, it grows: what is available is what its host has."""

    used_bytes: int
    available_bytes: int
    image_bytes: int | None = None
    """What the image takes of its host's disk; None: the pool is no image."""

    @property
    def fill(self) -> float:
        """The used part of what could be used."""
        return self.used_bytes / max(1, self.used_bytes + self.available_bytes)


class GarbageItem(Value):
    """Something that could go. `kind` is unfinished, orphan, template, image, output, base, repository,
    workspace or packages."""

    what: str
    kind: str
    why: str
    bytes: int | None = None
    """None: nobody counted. Copies that share content each count it."""
    kept_because: str | None = None
    """None: it is gone; in a dry run: it would go."""


class GarbageReport(Value):
    """What was looked at, in the order in which it goes."""

    items: tuple[GarbageItem, ...]
    dry_run: bool
    before: PoolSpace
    after: PoolSpace
