"""What the pages of all registries have in common: where they were, what their files may be, where those lead. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from fnmatch import fnmatchcase
from urllib.parse import urljoin

import msgspec

from paddock.model import Allow

from ._refusal import Refused
from ._target import PORTS, normal, split_target

MOST_FILES = 50_000
_DAY = 86_400.0

File = tuple[str, int, str]
"""Host, port, and path with query in its normal form: what a request for it names."""


class Malformed(ValueError):
    """A page that is not what the registry's protocol says, or is about something else."""


class NothingLeft(Exception):
    """All that a page had is held back; why."""


class Filtered(msgspec.Struct, frozen=True, kw_only=True):
    """A page as it may be seen, and the files that it leads to."""

    kind: str
    body: bytes
    files: frozenset[File]
    digests: dict[File, str] = {}
    """`sha256:` (or another) and hexadecimal digits: what the bytes of a file are, by the page."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Where a page was asked for, about which package, and the rule for what it may name."""

    scheme: str
    host: str
    port: int
    path: str
    package: str
    rule: Allow
    now: float
    """Seconds since 1970."""

    def ripe(self, when: object) -> bool:
        """Whether what was published at `when` (ISO 8601; anything else is no date) is old enough."""
        rule = self.rule
        if rule.cooldown_days is None and rule.unknown_age is None:
            return True
        published = _seconds(when)
        if published is None:
            return rule.unknown_age == "allow"
        return self.now - published >= (rule.cooldown_days or 0.0) * _DAY

    def file(self, link: object) -> tuple[File, str] | None:
        """Where a link of this page leads, and the same written anew without its fragment; None: nowhere that the rule
        is for."""
        if not isinstance(link, str) or len(link) > 4096:
            return None
        try:
            joined = urljoin(f"{self.scheme}://{authority(self.scheme, self.host, self.port)}{self.path}", link)
            scheme, host, port, path = split_target(joined.partition("#")[0], self.scheme)
            path = normal(path)
        except (ValueError, Refused):
            return None
        if scheme is None or host not in (self.rule.hosts or ()) or scheme not in (self.scheme, "https"):
            return None
        return (host, port, path), f"{scheme}://{authority(scheme, host, port)}{path}"

    def nothing_left(self, count: int) -> NothingLeft:
        days = self.rule.cooldown_days
        young = f"younger than {days:g} days" if days else "of an unknown age"
        return NothingLeft(
            f"none of the {count} files of {self.package} may be seen: they are {young}, have no date, or are another's"
        )


def authority(scheme: str, host: str, port: int) -> str:
    return host if port == PORTS[scheme] else f"{host}:{port}"


def is_listed(package: str, patterns: tuple[str, ...] | None) -> bool:
    """`package` and `patterns` are normalised; `*` is any run of characters."""
    return patterns is None or any(fnmatchcase(package, pattern) for pattern in patterns)


def _seconds(when: object) -> float | None:
    if not isinstance(when, str) or len(when) > 64:
        return None
    try:
        found = datetime.fromisoformat(when)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
