"""Versions in the order that their ecosystem puts them in. None: it is none, and has no place. Pure."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

Key: TypeAlias = tuple[Any, ...]

_SEMVER = re.compile(r"v?([0-9]{1,16})\.([0-9]{1,16})\.([0-9]{1,16})(?:-([0-9A-Za-z.-]+))?(?:\+.*)?")
_PEP440 = re.compile(
    r"v?(?:([0-9]{1,9})!)?([0-9]{1,16}(?:\.[0-9]{1,16}){0,15})(?:[-_.]?(a|alpha|b|beta|c|rc|pre|preview)[-_.]?([0-9]{0,9}))?"
    r"(?:(?:-([0-9]{1,9})|[-_.]?(post|rev|r)[-_.]?([0-9]{0,9})))?(?:[-_.]?(dev)[-_.]?([0-9]{0,9}))?(?:\+.*)?",
    re.IGNORECASE,
)
_PHASES = {"a": 0, "alpha": 0, "b": 1, "beta": 1}


def semver(version: str) -> Key | None:
    match = _SEMVER.fullmatch(version)
    if match is None:
        return None
    parts = (match[4] or "").split(".")
    before = tuple((not one.isdecimal(), int(one) if one.isdecimal() and len(one) < 17 else 0, one) for one in parts)
    return int(match[1]), int(match[2]), int(match[3]), match[4] is None, before


def pep440(version: str) -> Key | None:
    """Without what is local to somebody."""
    match = _PEP440.fullmatch(version)
    if match is None:
        return None
    epoch, release, phase, number, dash, post, post_number, dev, dev_number = match.groups()
    parts = [int(part) for part in release.split(".")]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    if phase is not None:
        before = (_PHASES.get(phase.lower(), 2), int(number or 0))
    else:
        before = (-1, 0) if dev and post is None and dash is None else (3, 0)
    after = int(dash or post_number or 0) if post is not None or dash is not None else -1
    return int(epoch or 0), tuple(parts), before, after, dev is None, int(dev_number or 0)
