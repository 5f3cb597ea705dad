"""All rules that are about a name, in one place: what is found by one look, and decided by a few comparisons more."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import combinations, product

import msgspec

from paddock.model import ConnectVerdict, Tier

from ._globs import overlap
from ._problem import Problem
from ._rules import Rule, Rules

MOST_RULES = 500
"""Rules about one name: all of them are asked at each request."""


class Bucket(msgspec.Struct, frozen=True, eq=False):
    """All rules in the order of the document; between two of `breaks` all ports are alike."""

    allow: tuple[Rule, ...]
    deny: tuple[Rule, ...]
    mock: tuple[Rule, ...]
    approve: tuple[Rule, ...]
    breaks: tuple[int, ...]
    verdicts: tuple[ConnectVerdict | None, ...]
    """None: nothing allows it."""
    named: ConnectVerdict | None
    """The best of them: what a name is worth to those who ask for its address."""

    def connect(self, port: int) -> ConnectVerdict | None:
        return self.verdicts[bisect_right(self.breaks, port)]


class _Own:
    """The rules for exactly this pattern; those for wider ones come on top."""

    def __init__(self) -> None:
        self.allow: list[Rule] = []
        self.deny: list[Rule] = []
        self.mock: list[Rule] = []
        self.approve: list[Rule] = []

    def lists(self) -> tuple[list[Rule], ...]:
        return self.allow, self.deny, self.mock, self.approve


def buckets_of(rules: Rules, revision: str) -> dict[str, Bucket]:
    """By host, and by `*.suffix`. Problem: two rules for the same want different things."""
    own: dict[str, _Own] = {}
    for kind, group in enumerate((rules.allow, rules.deny, rules.mock, rules.approve)):
        for rule in group:
            for host in rule.hosts:
                own.setdefault(host, _Own()).lists()[kind].append(rule)
    return {host: _bucket(own[host], [own[wider] for wider in wider_than(host, own)], revision) for host in own}


def wider_than(host: str, known: dict[str, _Own]) -> Iterator[str]:
    """The patterns among `known` that hold more names than `host` does, and all of its."""
    rest = host.removeprefix("*.")
    while "." in rest:
        rest = rest.partition(".")[2]
        if f"*.{rest}" in known:
            yield f"*.{rest}"


def _bucket(own: _Own, wider: list[_Own], revision: str) -> Bucket:
    merged: list[tuple[Rule, ...]] = []
    for kind, group in enumerate(own.lists()):
        all_rules = [*group, *(rule for one in wider for rule in one.lists()[kind])]
        merged.append(tuple(sorted(all_rules, key=lambda rule: rule.order)))
    allow, deny, mock, approve = merged
    total = sum(map(len, merged))
    if total > MOST_RULES:
        last = (*own.allow, *own.deny, *own.mock, *own.approve)[-1]
        raise Problem(last.path, f"{total} rules are about the same name; {MOST_RULES} can be", "join their paths")
    _check_agreement(own, wider)
    breaks, verdicts = _by_port(allow, deny, mock, approve, revision)
    some = [verdict for verdict in verdicts if verdict is not None]
    named = next((verdict for verdict in some if verdict.allowed), some[0] if some else None)
    return Bucket(allow, deny, mock, approve, breaks, verdicts, named)


def _check_agreement(own: _Own, wider: list[_Own]) -> None:
    """Of each pair, one is for exactly this pattern; the others met before."""
    beyond = [rule for more in wider for rule in more.allow]
    mocked = [rule for more in wider for rule in more.mock]
    if len({rule.manner for rule in (*own.allow, *beyond)}) > 1:
        for one, other in _pairs(own.allow, beyond):
            if one.manner != other.manner and ports_meet(one, other) and _requests_meet(one, other):
                raise _disagreement(one, other, _difference(one, other), "let paths, methods or ports tell them apart")
    for one, other in _pairs(own.mock, mocked):
        if ports_meet(one, other) and _requests_meet(one, other):
            raise _disagreement(one, other, "what is answered", "let paths or methods tell them apart")
    for one, other in product([*own.mock, *mocked], [*own.allow, *beyond]):
        if ports_meet(one, other) and (one in own.mock or other in own.allow):
            raise _disagreement(one, other, "whether the real host is asked", "a host is mocked or real: leave one out")
    _check_splice(own, wider)


def _check_splice(own: _Own, wider: list[_Own]) -> None:
    """What is passed on unseen cannot be judged by what is in it."""
    everything = [*own.allow, *own.deny, *own.approve]
    everything += [rule for one in wider for rule in (*one.allow, *one.deny, *one.approve)]
    spliced = [rule for rule in everything if rule.tier is Tier.SPLICE]
    if not spliced:
        return
    asked = {*own.approve, *(rule for one in wider for rule in one.approve)}
    for one, other in product(spliced, everything):
        if (other.looks or other.tier is Tier.INSPECT or other in asked) and ports_meet(one, other):
            raise _disagreement(one, other, "whether requests are looked at", "leave `tier: splice` out, or that rule")


def _pairs(own: list[Rule], beyond: list[Rule]) -> Iterator[tuple[Rule, Rule]]:
    yield from combinations(own, 2)
    yield from product(own, beyond)


def _disagreement(one: Rule, other: Rule, what: str, hint: str) -> Problem:
    if one.path > other.path:
        one, other = other, one
    message = f"this rule and {{other}} are about the same, and disagree on {what}"
    return Problem(other.path, message, hint, other=one.path)


def _difference(one: Rule, other: Rule) -> str:
    return "the secret" if one.secrets != other.secrets else "how requests are judged further (`git`, `registry`)"


def ports_meet(one: Rule, other: Rule) -> bool:
    return any(low <= top and bottom <= high for low, high in one.ports for bottom, top in other.ports)


def _requests_meet(one: Rule, other: Rule) -> bool:
    if one.methods is not None and other.methods is not None and not one.methods & other.methods:
        return False
    if one.paths is None or other.paths is None:
        return True
    return any(overlap(a.written, b.written) for a in one.paths for b in other.paths)


def _by_port(
    allow: tuple[Rule, ...], deny: tuple[Rule, ...], mock: tuple[Rule, ...], approve: tuple[Rule, ...], revision: str
) -> tuple[tuple[int, ...], tuple[ConnectVerdict | None, ...]]:
    edges: set[int] = set()
    for rule in (*allow, *deny, *mock, *approve):
        for low, high in rule.ports:
            edges |= {low, high + 1}
    breaks = tuple(sorted(edges))
    return breaks, (None, *(_at_port(port, allow, deny, mock, approve, revision) for port in breaks))


def _at_port(
    port: int,
    allow: tuple[Rule, ...],
    deny: tuple[Rule, ...],
    mock: tuple[Rule, ...],
    approve: tuple[Rule, ...],
    revision: str,
) -> ConnectVerdict | None:
    refusing = [rule for rule in deny if rule.has_port(port)]
    for rule in refusing:
        if not rule.looks:
            return ConnectVerdict(allowed=False, rule=rule.name, reason=f"{rule.name} denies it", revision=revision)
    for rule in mock:
        if rule.has_port(port):
            return _yes(rule, Tier.MOCK, revision)
    letting = [rule for rule in allow if rule.has_port(port)]
    if not letting:
        return None
    looked_at = refusing or any(rule.looks or rule.tier is Tier.INSPECT for rule in letting)
    looked_at = looked_at or any(rule.has_port(port) for rule in approve)
    return _yes(letting[0], Tier.INSPECT if looked_at else Tier.SPLICE, revision)


def _yes(rule: Rule, tier: Tier, revision: str) -> ConnectVerdict:
    return ConnectVerdict(allowed=True, rule=rule.name, reason=f"{rule.name} allows it", revision=revision, tier=tier)
