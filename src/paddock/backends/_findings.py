"""Findings of trials on this machine, as files of the state directory."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TypeVar

import msgspec

from paddock.linux.whole import keep_file

F = TypeVar("F")


def recall(place: Path, kind: type[F], facts: tuple[str, ...]) -> F | None:
    """Return the finding that came of these facts."""
    try:
        known, found = msgspec.json.decode(place.read_bytes(), type=tuple[tuple[str, ...], msgspec.Raw])
        return msgspec.json.decode(found, type=kind) if known == facts else None
    except (OSError, msgspec.DecodeError):
        return None


def remember(place: Path, finding: object, facts: tuple[str, ...]) -> None:
    """Store it whole, or not at all: then it is found out again."""
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        keep_file(place, msgspec.json.encode((facts, finding)))
