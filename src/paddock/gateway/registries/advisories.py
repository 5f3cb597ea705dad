"""The records of a malware list about a package, and whether they affect a version.

Pure.

The list: https://ossf.github.io/osv-schema/. A version that this can't compare counts as affected.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

Key: TypeAlias = tuple[Any, ...]

_SEMVER = re.compile(r"v?([0-9]{1,16})\.([0-9]{1,16})\.([0-9]{1,16})(?:-([0-9A-Za-z.-]+))?(?:\+.*)?")
_PEP440 = re.compile(
    r"v?(?:([0-9]{1,16})!)?([0-9]{1,16}(?:\.[0-9]{1,16}){0,31})"
    r"(?:[-_.]?(a|b|c|rc|alpha|beta|pre|preview)[-_.]?([0-9]{0,16}))?"
    r"(?:-([0-9]{1,16})|[-_.]?(post|rev|r)[-_.]?([0-9]{0,16}))?"
    r"(?:[-_.]?(dev)[-_.]?([0-9]{0,16}))?(?:\+[a-z0-9]+(?:[-_.][a-z0-9]+)*)?"
)


def semver(version: str) -> Key | None:
    match = _SEMVER.fullmatch(version)
    if match is None:
        return None
    parts = (match[4] or "").split(".")
    before = tuple((not one.isdecimal(), int(one) if one.isdecimal() and len(one) < 17 else 0, one) for one in parts)
    return int(match[1]), int(match[2]), int(match[3]), match[4] is None, before


def pep440(version: str) -> Key | None:
    """Return a version's key, without its local part."""
    match = _PEP440.fullmatch(version.lower())
    if match is None:
        return None
    epoch, release, phase, before, dash, post, after, dev, dev_number = match.groups()
    parts = tuple(int(part) for part in re.sub(r"(\.0+)+$", "", release).split("."))
    posted = post is not None or dash is not None
    if phase is not None:
        stage = ("ab".find(phase[0]) % 3, int(before or 0))  # alpha, beta, and what is short of a release
    else:
        stage = (3, 0) if posted or dev is None else (-1, 0)
    last = int(dash or after or 0) if posted else -1
    return int(epoch or 0), parts, stage, last, dev is None, int(dev_number or 0)


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A range of versions: from `introduced` up to before `fixed`, or up to `last`. None: without end."""

    introduced: str
    fixed: str | None = None
    last: str | None = None


class MalwareRecord(msgspec.Struct, frozen=True, array_like=True):
    """One record about one package: these `versions`, and the ones within `spans`. With neither it means all."""

    id: str
    versions: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()

    def affects(self, registry: str, version: str) -> bool:
        if not self.versions and not self.spans:
            return True
        key_of = _KEYS.get(registry, lambda _: None)
        if any(_same(version, one, key_of) for one in self.versions):
            return True
        return any(_within(version, span, key_of) for span in self.spans)


def _same(one: str, other: str, key_of: Callable[[str], Key | None]) -> bool:
    return one == other or ((key := key_of(one)) is not None and key == key_of(other))


def _within(version: str, span: Span, key_of: Callable[[str], Key | None]) -> bool:
    key = key_of(version)
    if key is None:
        return True
    if span.introduced != "0" and (first := key_of(span.introduced)) is not None and key < first:
        return False
    if span.fixed is not None and (fixed := key_of(span.fixed)) is not None and key >= fixed:
        return False
    return not (span.last is not None and (last := key_of(span.last)) is not None and key > last)


_KEYS: dict[str, Callable[[str], Key | None]] = {"pypi": pep440, "npm": semver, "crates": semver}
