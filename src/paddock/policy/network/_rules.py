"""The rules of a canonical document, compiled: one value each, for every kind of rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeAlias

import msgspec

from paddock.model import Allow, Approve, Binding, Deny, Mock, PolicyDocument, Tier
from paddock.model.policy import Port

from ._addresses import Address, Network
from ._addresses import network as parse_network
from ._canonical import REGISTRIES, span
from ._globs import Glob, compile_glob, tokens_of
from ._paths import Pattern, pattern
from ._problem import dotted
from ._yaml import Path

Span: TypeAlias = tuple[int, int]

ALL_PORTS: tuple[Span, ...] = ((1, 65_535),)
WEB_PORTS: tuple[Span, ...] = ((80, 80), (443, 443))
TLS_PORT: tuple[Span, ...] = ((443, 443),)
READING = frozenset({"GET", "HEAD"})
_GIT_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "HEAD"})
_LFS, _LFS_BATCH = "/info/lfs/", "/info/lfs/objects/batch"


class Rule(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A compiled rule.

    `order` is its index in the document. `hosts` are names and `*.suffix`es. A rule has either `hosts` or `network`.
    """

    path: Path
    name: str
    order: int
    ports: tuple[Span, ...]
    hosts: tuple[str, ...] = ()
    network: Network | None = None
    methods: frozenset[str] | None = None
    paths: tuple[Pattern, ...] | None = None
    tier: Tier | None = None
    secrets: tuple[str, ...] = ()
    registry: str | None = None
    filtered: bool = False
    git: str | None = None
    fetch: bool = False
    push: bool = False
    refs: tuple[Glob, ...] = ()
    """The refs that a push may change, by their full names."""

    @property
    def looks(self) -> bool:
        """Tell whether the gateway has to inspect requests for this rule."""
        return bool(self.methods is not None or self.paths is not None or self.secrets or self.registry or self.git)

    @property
    def manner(self) -> tuple[object, ...]:
        """Return the settings in which two rules for one request must agree."""
        protocol = (self.registry, self.git, self.order) if self.registry or self.git else ()
        return (self.secrets, protocol)

    def has_port(self, port: int) -> bool:
        for low, high in self.ports:  # noqa: SIM110 (a generator costs more than the rest of a decision)
            if low <= port <= high:
                return True
        return False

    def allows(self, method: str, path: str, other: str, query: str, push: bool | None = None) -> bool:
        if self.methods is not None and method not in self.methods:
            return False
        if self.paths is not None and not any(one.allows(path, other) for one in self.paths):
            return False
        return self.git is None or _is_git(self, method, path, query, push)

    def denies(self, method: str, path: str, other: str) -> bool:
        if self.methods is not None and method not in self.methods:
            return False
        return self.paths is None or any(one.denies(path, other) for one in self.paths)


def _is_git(rule: Rule, method: str, path: str, query: str, push: bool | None) -> bool:
    """Tell whether it is a request of git's smart protocol or of LFS that the rule is for."""
    if _LFS in path:
        push = is_git_push(method, path, query, push)
        return rule.fetch or rule.push if push is None else rule.push if push else rule.fetch
    if path.endswith("/info/refs"):
        return method == "GET" and (
            (rule.fetch and query == "service=git-upload-pack") or (rule.push and query == "service=git-receive-pack")
        )
    if path.endswith("/git-upload-pack"):
        return method == "POST" and rule.fetch and not query
    return method == "POST" and rule.push and not query


def is_git_push(method: str, path: str, query: str, push: bool | None) -> bool | None:
    """Tell whether a request to a git repository changes it.

    `push` is the answer from the body of an LFS batch. Without it the result for a batch is None.
    """
    if _LFS not in path:
        return path.endswith("/git-receive-pack")
    if method in READING:
        return False
    return push if method == "POST" and path.endswith(_LFS_BATCH) and not query else True


class Group(msgspec.Struct, frozen=True, eq=False):
    """Rules of each kind, in the order of the document."""

    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    mock: tuple[Rule, ...] = ()
    approve: tuple[Rule, ...] = ()

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (*self.allow, *self.deny, *self.mock, *self.approve)


class Rules(Group, frozen=True, eq=False, kw_only=True):
    deeds: frozenset[str]
    """Actions that need an approval at every host."""
    bindings: tuple[tuple[str, Binding, Rule], ...]
    """Each secret with a binding of it, also compiled as a rule."""


def rules_of(document: PolicyDocument) -> Rules:
    deeds = frozenset(one for one in document.approve if isinstance(one, str))
    asked = [
        _of_host(one, ("approve", index), index)
        for index, one in enumerate(document.approve)
        if isinstance(one, Approve)
    ]
    egress = document.egress
    return Rules(
        allow=tuple(_allow(one, index, publish="publish" in deeds) for index, one in enumerate(egress.allow)),
        deny=tuple(_deny(one, index) for index, one in enumerate(egress.deny)),
        mock=tuple(_of_host(one, ("egress", "mock", index), index) for index, one in enumerate(egress.mock)),
        approve=tuple(asked),
        deeds=deeds,
        bindings=tuple(_bindings(document)),
    )


def _allow(rule: Allow, index: int, *, publish: bool) -> Rule:
    path: Path = ("egress", "allow", index)
    new = partial(Rule, path=path, name=dotted(path), order=index, secrets=tuple(rule.secret or ()))
    if rule.cidr is not None:
        return new(network=parse_network(rule.cidr), ports=_spans(rule.ports, ALL_PORTS), tier=rule.tier)
    if rule.registry is not None:
        # A write to a registry publishes. Only an `approve` rule covers that.
        methods = None if publish else READING
        ports = _spans(rule.ports, WEB_PORTS if rule.registry == "debian" else TLS_PORT)
        hosts = rule.hosts or REGISTRIES[rule.registry]
        terms = (rule.cooldown_days, rule.packages, rule.unknown_age, rule.malware)
        return new(
            hosts=hosts,
            ports=ports,
            registry=rule.registry,
            filtered=any(term is not None for term in terms),
            methods=methods,
        )
    if rule.git is not None:
        return _git(rule.git, new, fetch=rule.fetch is not False, refs=rule.push or ())
    return _of_host(rule, path, index)


def _git(url: str, new: partial[Rule], *, fetch: bool, refs: tuple[str, ...]) -> Rule:
    place, _, repository = url.removeprefix("https://").partition("/")
    host, _, port = place.partition(":")
    number = int(port or 443)
    ends = ("info/refs", "git-upload-pack", "git-receive-pack", "info/lfs/**")
    paths = [pattern(f"/{repository}{suffix}/{end}") for suffix in ("", ".git") for end in ends]
    return new(
        hosts=(host,),
        ports=((number, number),),
        paths=tuple(paths),
        methods=_GIT_METHODS,
        git=url,
        fetch=fetch,
        push=bool(refs),
        refs=tuple(compile_glob(tokens_of(ref)) for ref in refs),
    )


def _deny(rule: Deny, index: int) -> Rule:
    path: Path = ("egress", "deny", index)
    if rule.cidr is None:
        return _of_host(rule, path, index, ALL_PORTS)
    network = parse_network(rule.cidr)
    return Rule(path=path, name=dotted(path), order=index, network=network, ports=_spans(rule.ports, ALL_PORTS))


def _of_host(
    rule: Allow | Deny | Mock | Approve | Binding, path: Path, index: int, default: tuple[Span, ...] = WEB_PORTS
) -> Rule:
    ports = ((rule.port, rule.port),) if isinstance(rule, Binding) else _spans(rule.ports, default)
    return Rule(
        path=path,
        name=dotted(path),
        order=index,
        hosts=(rule.host or "",),
        ports=ports,
        methods=None if rule.methods is None else frozenset(rule.methods),
        paths=None if rule.paths is None else tuple(map(pattern, rule.paths)),
        tier=rule.tier if isinstance(rule, Allow) else None,
        secrets=tuple(rule.secret or ()) if isinstance(rule, (Allow, Mock)) else (),
    )


def _bindings(document: PolicyDocument) -> Iterator[tuple[str, Binding, Rule]]:
    for name, secret in document.secrets.items():
        bindings = secret.bind if isinstance(secret.bind, tuple) else (secret.bind,)
        for index, binding in enumerate(bindings):
            yield name, binding, _of_host(binding, ("secrets", name, "bind", index), index)


def _spans(ports: tuple[Port, ...] | None, default: tuple[Span, ...]) -> tuple[Span, ...]:
    """Apart from each other, and in order."""
    if ports is None:
        return default
    merged: list[Span] = []
    for low, high in sorted(map(span, ports)):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


_BITS = {4: 32, 6: 128}


class Networks:
    """The networks that an address is in, by one look per length of prefix that there is. Immutable once made."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        by_length: dict[tuple[int, int], dict[int, list[Rule]]] = {}
        for rule in rules:
            network = rule.network
            if network is not None:
                shift = _BITS[network.version] - network.prefixlen
                table = by_length.setdefault((network.version, shift), {})
                table.setdefault(int(network.network_address) >> shift, []).append(rule)
        self._tables = {
            version: tuple((shift, by_length[v, shift]) for v, shift in sorted(by_length) if v == version)
            for version in (4, 6)
        }

    def find(self, address: Address, port: int, least: int = 0) -> Rule | None:
        """Find the narrowest rule for this address and port. Its network has a prefix of at least so many bits."""
        bits, value = address.max_prefixlen, int(address)
        for shift, table in self._tables[address.version]:
            for rule in table.get(value >> shift, ()):
                if rule.has_port(port) and bits - shift >= least:
                    return rule
        return None
