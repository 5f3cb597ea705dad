"""What the pages of all registries have in common: where they were, what their files may be, where those lead. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, cast
from urllib.parse import urljoin

import msgspec

from paddock.gateway.protocols.names import PORTS, normal, split_target
from paddock.gateway.protocols.refusal import Refused
from paddock.model import Allow

from .advisories import MalwareRecord

MOST_FILES = 50_000
_DAY = 86_400.0
_PLAIN_LINK = re.compile(r"https://([a-z0-9.-]+)((?:/[A-Za-z0-9_+!~-][A-Za-z0-9._+!~-]*)+)(?:#[\x21-\x7e]*)?")
"""One that is in its normal form as it stands, as almost all of a page of thousands are: no dots, no escapes."""

File = tuple[str, int, str]
"""Host, port, and path with query in its normal form: what a request for it names."""


class Malformed(ValueError):
    """A page that is not what the registry's protocol says, or is about something else."""


def read_object(body: bytes) -> dict[str, Any]:
    """Read an object. Raise Malformed if it is no object of JSON."""
    try:
        found: object = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Malformed(f"it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Malformed("it is no object")
    return cast("dict[str, Any]", found)


class PackageFile(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a file that a page has led to. `digest` is what its body has to be (`sha256:…`, in hex), as the
    page says; `held` why it may not be fetched."""

    package: str
    version: str
    digest: str | None = None
    held: str | None = None


class Filtered(msgspec.Struct, frozen=True, kw_only=True):
    """A page as it may be seen, and the files that it leads to, those that are held back among them.

    `held` says in words what is held back, and why. `nothing`: none of them may be fetched; then there is no page, and
    this is why. `downloads` is how an index of crates says where files are."""

    kind: str
    body: bytes
    files: tuple[tuple[File, PackageFile], ...] = ()
    held: str = ""
    nothing: str | None = None
    downloads: str | None = None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Where a page was asked for, about which package, and the rule for what it may name: `item` is its place in the
    policy. `accept` is what the client takes."""

    scheme: str
    host: str
    port: int
    path: str
    package: str
    rule: Allow
    now: float
    """Seconds since 1970."""
    known: tuple[MalwareRecord, ...] = ()
    """What a list of malware has about the package."""
    downloads: str | None = None
    item: int = 0
    accept: str = ""

    def held(self, version: str, when: object) -> str | None:
        """Say why a version of `when` (ISO 8601; anything else is no date) may not be fetched, or return None if it
        may."""
        return malicious(self.rule, self.known, version) or too_young(self.rule, seconds(when), self.now)

    def file(self, link: object) -> tuple[File, str] | None:
        """Return where a link of this page leads, and the link written anew without its fragment, or None if the rule
        isn't for that place."""
        if not isinstance(link, str) or len(link) > 4096:
            return None
        plain = _PLAIN_LINK.fullmatch(link)
        if plain is not None and plain[1] in (self.rule.hosts or ()):
            return (plain[1], PORTS["https"], plain[2]), f"https://{plain[1]}{plain[2]}"
        return self._resolved(link)

    def _resolved(self, link: str) -> tuple[File, str] | None:
        try:
            joined = urljoin(f"{self.scheme}://{authority(self.scheme, self.host, self.port)}{self.path}", link)
            scheme, host, port, path = split_target(joined.partition("#")[0], self.scheme)
            path = normal(path)
        except (ValueError, Refused):
            return None
        if scheme is None or host not in (self.rule.hosts or ()) or scheme not in (self.scheme, "https"):
            return None
        return (host, port, path), f"{scheme}://{authority(scheme, host, port)}{path}"

    def filtered(self, kind: str, body: bytes, files: dict[File, PackageFile]) -> Filtered:
        held, nothing = reasons({kept.version: kept.held for kept in files.values() if kept.held}), None
        if held and all(kept.held for kept in files.values()):
            nothing, body = f"all there is of {self.package} is held back: {held}", b""
        return Filtered(kind=kind, body=body, files=tuple(files.items()), held=held, nothing=nothing)


def malicious(rule: Allow, known: Iterable[MalwareRecord], version: str) -> str | None:
    found = next((one.id for one in known if one.affects(rule.registry or "", version)), None)
    return None if found is None else f"known malware ({found})"


def too_young(rule: Allow, published: float | None, now: float) -> str | None:
    if rule.cooldown_days is None and rule.unknown_age is None:
        return None
    if published is None:
        return None if rule.unknown_age == "allow" else "of an unknown age"
    days = rule.cooldown_days or 0.0
    return None if now - published >= days * _DAY else f"younger than {days:g} day{'' if days == 1 else 's'}"


def reasons(held: dict[str, str], most: int = 8) -> str:
    """Say in words why each version is held back, the last of them first."""
    by_reason: dict[str, list[str]] = {}
    for version, reason in reversed(held.items()):
        by_reason.setdefault(reason, []).append(version)
    parts: list[str] = []
    for reason, versions in by_reason.items():
        more = f" and {len(versions) - most} more" if len(versions) > most else ""
        parts.append(f"{', '.join(versions[:most])}{more} ({reason})")
    return "; ".join(parts)


def authority(scheme: str, host: str, port: int) -> str:
    return host if port == PORTS[scheme] else f"{host}:{port}"


def is_listed(package: str, patterns: tuple[str, ...] | None) -> bool:
    """Tell whether a package is listed. `package` and `patterns` are normalised; `*` is any run of characters."""
    return patterns is None or any(fnmatchcase(package, pattern) for pattern in patterns)


def seconds(when: object) -> float | None:
    if not isinstance(when, str) or len(when) > 64:
        return None
    try:
        found = datetime.fromisoformat(when)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
