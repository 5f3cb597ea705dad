"""The common part of the registries' pages: their places, the possible files, and the targets of their links. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, cast
from urllib.parse import urljoin

import msgspec

from paddock.gateway.protocols.names import PORTS, normal, split_target, written
from paddock.gateway.protocols.refusal import Refused
from paddock.model import Allow

from .advisories import MalwareRecord

MOST_FILES = 50_000
_DAY = 86_400.0
_PLAIN_LINK = re.compile(r"https://([a-z0-9.-]+)((?:/[A-Za-z0-9_+!~-][A-Za-z0-9._+!~-]*)+)(?:#[\x21-\x7e]*)?")
"""A URL in normal form, without dots and escapes. Almost all of a page with thousands are."""

File = tuple[str, int, str]
"""Host, port, and path with query in its normal form, as in a request for the file."""


class Malformed(ValueError):
    """A page that violates the registry's protocol, or is about another package."""


def read_object(body: bytes) -> dict[str, Any]:
    """Read a JSON object. Raise Malformed if it is another value."""
    try:
        found: object = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Malformed(f"it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Malformed("it is not a JSON object")
    return cast("dict[str, Any]", found)


class PackageFile(msgspec.Struct, frozen=True, array_like=True):
    """A file that a page has linked.

    `digest` is the required one of its body (`sha256:…`, in hex), from the page.

    `held` is the reason why the sandbox may not fetch it.
    """

    package: str
    version: str
    digest: str | None = None
    held: str | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A filtered page, or the reason why it is `malformed`.

    `files` are by `protocols.key_of`, each a `PackageFile` as MessagePack, so that `KnownFiles` stores them without
    decoding. `held` names the held versions with the reasons as text. `nothing` is the reason if the sandbox may fetch
    none of them. Then the page is missing. `downloads` is the place of files in an index of crates.
    """

    kind: str = ""
    body: bytes = b""
    files: dict[bytes, bytes] = {}
    held: str = ""
    nothing: str | None = None
    downloads: str | None = None
    malformed: str | None = None


Filtered = tuple[Answer, dict[File, PackageFile]]
"""A filtered page, still without its `files`, and the files that it links, with the held ones."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a page: its URL, the package, and the rule.

    `item` is the rule's index in the policy.

    `accept` are the types that the client accepts.
    """

    scheme: str
    host: str
    port: int
    path: str
    package: str
    rule: Allow
    now: float
    """Seconds since 1970."""
    known: tuple[MalwareRecord, ...] = ()
    """The records of a malware list about the package."""
    downloads: str | None = None
    item: int = 0
    accept: str = ""

    def held(self, version: str, when: object) -> str | None:
        """Return why the sandbox may not fetch a version of `when`, or None if it may.

        `when` is in ISO 8601, and any other value counts as missing.
        """
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
            joined = urljoin(f"{self.scheme}://{written(self.scheme, self.host, self.port)}{self.path}", link)
            scheme, host, port, path = split_target(joined.partition("#")[0], self.scheme)
            path = normal(path)
        except (ValueError, Refused):
            return None
        if scheme is None or host not in (self.rule.hosts or ()) or scheme not in (self.scheme, "https"):
            return None
        return (host, port, path), f"{scheme}://{written(scheme, host, port)}{path}"

    def filtered(self, kind: str, body: bytes, files: dict[File, PackageFile]) -> Filtered:
        held, nothing = reasons({kept.version: kept.held for kept in files.values() if kept.held}), None
        if held and all(kept.held for kept in files.values()):
            nothing, body = f"all there is of {self.package} is held back: {held}", b""
        return Answer(kind=kind, body=body, held=held, nothing=nothing), files


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
    """Return the held versions with their reasons as text, the last versions first."""
    by_reason: dict[str, list[str]] = {}
    for version, reason in reversed(held.items()):
        by_reason.setdefault(reason, []).append(version)
    parts: list[str] = []
    for reason, versions in by_reason.items():
        more = f" and {len(versions) - most} more" if len(versions) > most else ""
        parts.append(f"{', '.join(versions[:most])}{more} ({reason})")
    return "; ".join(parts)


def is_listed(package: str, patterns: tuple[str, ...] | None) -> bool:
    """Tell whether patterns cover a package.

    `package` and `patterns` are in normal form. `*` is any run of characters.
    """
    return patterns is None or any(fnmatchcase(package, pattern) for pattern in patterns)


def seconds(when: object) -> float | None:
    if not isinstance(when, str) or len(when) > 64:
        return None
    try:
        found = datetime.fromisoformat(when)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
