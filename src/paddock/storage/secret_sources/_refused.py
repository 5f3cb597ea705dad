"""Why a source has no value."""

from __future__ import annotations

LEAST_BYTES = 8
"""A shorter one could not be told from ordinary text where it comes back and has to be taken out."""
MOST_BYTES = 64 << 10


class Refused(Exception):
    """The words name the source and say why. Nothing of a value is in them."""

    def __init__(self, source: str, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.source, self.hint = source, hint
