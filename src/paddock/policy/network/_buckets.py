"""All rules about a name in one place. One lookup finds them, and a few comparisons decide."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product

from paddock.model import ConnectVerdict, Tier

from ._globs import overlap
from ._problem import Problem
from ._rules import Group, Rule, Rules

MOST_RULES = 500
"""Most rules about one name. A request compares all of them."""


class Bucket(Group, frozen=True, eq=False, kw_only=True):
    """Between two of `breaks` all ports are alike."""

    breaks: tuple[int, ...]
    verdicts: tuple[ConnectVerdict | None, ...]
    """None: no rule allows the port."""
    named: ConnectVerdict | None
    """The best verdict of the rules. It decides whether a sandbox may resolve the name."""

    def connect(self, port: int) -> ConnectVerdict | None:
        return self.verdicts[bisect_right(self.breaks, port)]


def _joined(groups: Iterable[Group]) -> Group:
    each = [(group.allow, group.deny, group.mock, group.approve) for group in groups]
    merged = (sorted((rule for one in each for rule in one[kind]), key=lambda rule: rule.order) for kind in range(4))
    return Group(*map(tuple, merged))


def buckets_of(rules: Rules, revision: str) -> dict[str, Bucket]:
    """Group rules by host and by `*.suffix`. Raise Problem if two rules for the same want different things."""
    lists: dict[str, tuple[list[Rule], ...]] = {}
    for kind, group in enumerate((rules.allow, rules.deny, rules.mock, rules.approve)):
        for rule in group:
            for host in rule.hosts:
                lists.setdefault(host, ([], [], [], []))[kind].append(rule)
    own = {host: Group(*map(tuple, kinds)) for host, kinds in lists.items()}
    return {host: _bucket(own[host], [own[wider] for wider in wider_than(host, own)], revision) for host in own}


def wider_than(host: str, known: dict[str, Group]) -> Iterator[str]:
    """Return the patterns among `known` that hold more names than `host` does, and all of its."""
    rest = host.removeprefix("*.")
    while "." in rest:
        rest = rest.partition(".")[2]
        if f"*.{rest}" in known:
            yield f"*.{rest}"


def _bucket(own: Group, wider: list[Group], revision: str) -> Bucket:
    group = _joined([own, *wider])
    total = len(group.rules)
    if total > MOST_RULES:
        last = own.rules[-1]
        raise Problem(last.path, f"{total} rules are about the same name; {MOST_RULES} can be", "join their paths")
    _check_agreement(own, Group() if not wider else _joined(wider))
    edges = {edge for rule in group.rules for low, high in rule.ports for edge in (low, high + 1)}
    breaks = tuple(sorted(edges))
    some = [_at_port(port, group, revision) for port in breaks]
    found = [verdict for verdict in some if verdict is not None]
    named = next((verdict for verdict in found if verdict.allowed), found[0] if found else None)
    return Bucket(
        group.allow, group.deny, group.mock, group.approve, breaks=breaks, verdicts=(None, *some), named=named
    )


def _check_agreement(own: Group, wider: Group) -> None:
    """Check pairs of rules in which one is for exactly this pattern. The other pairs already have their check."""
    if len({rule.manner for rule in (*own.allow, *wider.allow)}) > 1:
        for one, other in _pairs(own.allow, wider.allow):
            if one.manner != other.manner and ports_meet(one, other) and _requests_meet(one, other):
                other_secret = one.secrets != other.secrets
                what = "the secret" if other_secret else "how requests are judged further (`git`, `registry`)"
                raise _disagreement(one, other, what, "let paths, methods or ports tell them apart")
    for one, other in _pairs(own.mock, wider.mock):
        if ports_meet(one, other) and _requests_meet(one, other):
            raise _disagreement(one, other, "what is answered", "let paths or methods tell them apart")
    for one, other in product([*own.mock, *wider.mock], [*own.allow, *wider.allow]):
        if ports_meet(one, other) and (one in own.mock or other in own.allow):
            raise _disagreement(one, other, "whether the real host is asked", "a host is mocked or real: leave one out")
    _check_splice([*own.allow, *own.deny, *wider.allow, *wider.deny], {*own.approve, *wider.approve})


def _check_splice(rules: list[Rule], asked: set[Rule]) -> None:
    """Check that no rule inspects connections that another rule passes on without inspection."""
    spliced = [rule for rule in rules if rule.tier is Tier.SPLICE]
    for one, other in product(spliced, [*rules, *asked] if spliced else ()):
        if (other.looks or other.tier is Tier.INSPECT or other in asked) and ports_meet(one, other):
            raise _disagreement(one, other, "whether requests are looked at", "leave `tier: splice` out, or that rule")


def _pairs(own: Sequence[Rule], beyond: Sequence[Rule]) -> Iterator[tuple[Rule, Rule]]:
    yield from combinations(own, 2)
    yield from product(own, beyond)


def _disagreement(one: Rule, other: Rule, what: str, hint: str) -> Problem:
    if one.path > other.path:
        one, other = other, one
    message = f"this rule and {{other}} are about the same, and disagree on {what}"
    return Problem(other.path, message, hint, other=one.path)


def ports_meet(one: Rule, other: Rule) -> bool:
    return any(low <= top and bottom <= high for low, high in one.ports for bottom, top in other.ports)


def _requests_meet(one: Rule, other: Rule) -> bool:
    if one.methods is not None and other.methods is not None and not one.methods & other.methods:
        return False
    if one.paths is None or other.paths is None:
        return True
    return any(overlap(a.written, b.written) for a in one.paths for b in other.paths)


def _at_port(port: int, group: Group, revision: str) -> ConnectVerdict | None:
    refusing = [rule for rule in group.deny if rule.has_port(port)]
    for rule in refusing:
        if not rule.looks:
            return ConnectVerdict(allowed=False, rule=rule.name, reason=f"{rule.name} denies it", revision=revision)
    for rule in group.mock:
        if rule.has_port(port):
            return allowed(rule, Tier.MOCK, revision)
    letting = [rule for rule in group.allow if rule.has_port(port)]
    if not letting:
        return None
    looked_at = refusing or any(rule.looks or rule.tier is Tier.INSPECT for rule in letting)
    looked_at = looked_at or any(rule.has_port(port) for rule in group.approve)
    return allowed(letting[0], Tier.INSPECT if looked_at else Tier.SPLICE, revision)


def allowed(rule: Rule, tier: Tier, revision: str) -> ConnectVerdict:
    return ConnectVerdict(allowed=True, rule=rule.name, reason=f"{rule.name} allows it", revision=revision, tier=tier)
