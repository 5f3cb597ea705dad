"""Explains a verdict on a request: the rule that decides, and the rules that almost match."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec

from paddock.errors import InvalidArgumentError
from paddock.model import Target, Tier, Verdict
from paddock.model.egress import host_matches

from ._addresses import parse_address
from ._load import Loaded
from ._names import NotAName, canonical_name
from ._paths import decoded, normal_path
from ._problem import place_of
from ._rules import Rule
from ._yaml import Path, Places

_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21, "ssh": 22, "postgres": 5432, "tcp": 0}


class NearMiss(msgspec.Struct, frozen=True, kw_only=True):
    """A rule for this host that doesn't cover this request, and the reason."""

    rule: str
    line: int | None
    because: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """`line` is where the deciding rule is in the text, if there is one. `path` is in its normal form."""

    allowed: bool
    rule: str
    reason: str
    line: int | None
    host: str
    port: int
    method: str
    path: str
    tier: Tier | None
    secrets: tuple[str, ...]
    approve: str | None
    revision: str
    near: tuple[NearMiss, ...]


def explain(loaded: Loaded, method: str, url: str) -> Explanation:
    """Explain the verdict on a request.

    Raises InvalidArgumentError for an invalid URL, or one that the gateway always refuses.
    """
    target, scheme, path = _asked(url)
    snapshot = loaded.snapshot
    connected = snapshot.connect(target)
    verdict: Verdict = connected
    secrets: tuple[str, ...] = ()
    approve = None
    if connected.allowed:
        verdict = requested = snapshot.request(target, scheme, method, path)
        secrets, approve = requested.secrets, requested.approve
    return Explanation(
        allowed=verdict.allowed,
        rule=verdict.rule,
        reason=verdict.reason,
        line=_line(_path_of(loaded, verdict.rule), loaded.places),
        host=target.host,
        port=target.port,
        method=method,
        path=path,
        tier=connected.tier if verdict.allowed else None,
        secrets=secrets,
        approve=approve,
        revision=verdict.revision,
        near=() if verdict.allowed or verdict.rule != "default" else tuple(_near(loaded, target, method, path)),
    )


def _asked(url: str) -> tuple[Target, str, str]:
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        port, host = parts.port or _PORTS.get(parts.scheme, 0), parts.hostname or ""
    except ValueError as error:
        raise InvalidArgumentError(f"{url!r} is not a URL: {error}", hint="https://host/path") from None
    if "\\" in url or "@" in parts.netloc:
        raise InvalidArgumentError(f"{url!r} is read differently by different programs: the gateway refuses it")
    if not port:
        raise InvalidArgumentError(f"{url!r} has no port that is known", hint=f"{parts.scheme}://{host}:PORT")
    try:
        name = host if parse_address(host) is not None else canonical_name(host)
    except NotAName as error:
        raise InvalidArgumentError(f"{host!r} {error}: the gateway refuses it") from None
    path = normal_path((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
    if path is None:
        raise InvalidArgumentError(f"the path of {url!r} has no normal form: the gateway refuses it")
    return Target(name, port), parts.scheme, path


def _near(loaded: Loaded, target: Target, method: str, path: str) -> Iterator[NearMiss]:
    rules = loaded.snapshot.rules
    path, _, query = path.partition("?")
    for rule in (*rules.mock, *rules.allow):
        if any(host_matches(host, target.host) for host in rule.hosts):
            because = _difference(rule, target.port, method, path, query)
            yield NearMiss(rule=rule.name, line=_line(rule.path, loaded.places), because=because)


def _difference(rule: Rule, port: int, method: str, path: str, query: str) -> str:
    if not rule.has_port(port):
        spans = (str(low) if low == high else f"{low}-{high}" for low, high in rule.ports)
        return f"it is for port {', '.join(spans)}"
    if rule.methods is not None and method not in rule.methods:
        return f"it is for {', '.join(sorted(rule.methods))}"
    if rule.paths is not None and not any(one.allows(path, decoded(path)) for one in rule.paths):
        return f"it is for {', '.join(one.text for one in rule.paths)}"
    return "it is for other requests of git" if rule.git else "it does not match"


def _path_of(loaded: Loaded, name: str) -> Path | None:
    rules = loaded.snapshot.rules
    return next((rule.path for rule in (*rules.deny, *rules.mock, *rules.allow) if rule.name == name), None)


def _line(path: Path | None, places: Places | None) -> int | None:
    return None if path is None or places is None else place_of(path, places).line
