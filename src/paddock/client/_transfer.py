"""What came of moving a tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

Moved: TypeAlias = Callable[[int], object]
"""Told how many bytes have just gone."""


class TransferReport(msgspec.Struct, frozen=True, kw_only=True):
    """`entries` counts files, directories and links; `skipped` names what was passed over, as untrusted text."""

    entries: int
    total_bytes: int
    skipped: tuple[str, ...] = ()
