"""Compares two policies: it asks both about one request of each kind that they could treat differently.

The rules divide all possible requests into finitely many cells (names, spans of ports, methods, paths, spans of
addresses). Within a cell, each policy gives one answer. A comparison of all cells is therefore complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from ipaddress import IPv4Address, IPv6Address
from itertools import groupby, pairwise
from typing import Literal, NamedTuple, cast

import msgspec

from paddock.errors import InvalidArgumentError
from paddock.model import Allow, Target, Tier

from ._addresses import SPECIAL, TRANSLATED, Address, Network
from ._globs import Glob, union
from ._paths import Pattern, is_overlong, normal_path
from ._rules import Rule
from ._snapshot import Snapshot

_PLAIN = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+,;=:@/"
_MOST_STATES = 50_000


_Unit = tuple[str, str]
"""One step of a path: the written text, and the decoded one."""


class _State(NamedTuple):
    """The positions of the globs, in both readings. `part` and `slash` keep the walk to normal paths: `part` is the
    begun part of the path (nothing yet, `.`, `..`, or more), `slash` whether the last character is one."""

    written: int
    decoded: int
    part: str = ""
    slash: bool = False


def example_paths(patterns: Sequence[Pattern]) -> tuple[str, ...]:
    """Return a shortest path for each set of patterns that some path matches, in either reading.

    Raise InvalidArgumentError if the patterns are too many to compare.
    """
    written, decoded = union(pattern.written for pattern in patterns), union(one.decoded for one in patterns)
    units = tuple(_units(patterns))
    first = _step(_State(written.start, decoded.start), ("/", "/"), written, decoded)
    assert first is not None
    found: dict[tuple[int, int], str] = {}
    seen, row = {first}, [(first, "/")]
    while row:
        following: list[tuple[_State, str]] = []
        for state, text in row:
            if state.part not in (".", ".."):
                found.setdefault((written.matched(state.written), decoded.matched(state.decoded)), text)
            for unit in units:
                next = None if is_overlong(text[-3:] + unit[0]) else _step(state, unit, written, decoded)
                if next is not None and next not in seen:
                    seen.add(next)
                    following.append((next, text + unit[0]))
        if len(seen) > _MOST_STATES:
            raise InvalidArgumentError(
                "the paths of these policies are too many to compare", hint="compare a part of them"
            )
        row = following
    return tuple(text for text in found.values() if normal_path(text) == text)


def _units(patterns: Sequence[Pattern]) -> Iterator[_Unit]:
    """Yield the characters that patterns name, escaped where they would not be plain, and two that none does."""
    tokens = (token for pattern in patterns for token in (*pattern.written.tokens, *pattern.decoded.tokens))
    named = {token for token in tokens if isinstance(token, str)}
    for character in sorted(named | {"/"}):
        if character in _PLAIN:
            yield character, character
        if not (character.isascii() and (character.isalnum() or character in "-._~")):
            yield f"%{ord(character):02X}", character
    yield next((other, other) for other in _PLAIN if other not in named)
    yield next((f"%{code:02X}", chr(code)) for code in range(0x80, 0x100) if chr(code) not in named)


def _step(state: _State, unit: _Unit, written: Glob, decoded: Glob) -> _State | None:
    """Take one step, or return None if such a path has no normal form."""
    text, meant = unit
    if meant == "/" and (state.part in (".", "..") or (text == "/" and state.slash)):
        return None
    if text in ("%25", "%5C"):  # of an escape, or a backslash
        return None
    part = "" if meant == "/" else state.part + meant
    return _State(
        reduce(written.step, text, state.written),
        decoded.step(state.decoded, meant),
        part if part in ("", ".", "..") else "more",
        text == "/",
    )


_PORTS_END = 65_536
OTHER_METHOD = "ONE-THAT-IS-TOO-LONG-FOR-ANY-RULE-TO-NAME"
_GIT = ("?service=git-upload-pack", "?service=git-receive-pack")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a request. `further` is the rule that judges it next, or the answer of a mock."""

    allowed: bool
    tier: Tier | None = None
    secrets: tuple[str, ...] = ()
    approve: str | None = None
    further: object = None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A difference between two policies.

    `where` is a name, `*.suffix`, or addresses, and `example` one of the requests. `requests` are methods and paths, or
    another kind of request.
    """

    kind: Literal["allowed", "denied", "changed"]
    where: str
    ports: str = "-"
    requests: str = "-"
    example: str = ""
    note: str = ""
    before: Outcome
    after: Outcome


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that neither policy tells apart, by one of them. `method` is None for those that no rule names."""

    where: str
    host: str
    low: int
    high: int
    method: str | None
    path: str


def diff(before: Snapshot, after: Snapshot) -> tuple[Change, ...]:
    """InvalidArgumentError: the paths of a host are too many to compare."""
    changes: list[Change] = []
    for host, where in _hosts(before, after):
        asked = ((cell, (outcome(before, cell), outcome(after, cell))) for cell in _cells(host, where, before, after))
        found = [(cell, (old, new)) for cell, (old, new) in asked if old != new]
        found.sort(key=lambda one: (one[0].low, str(one[1])))
        for _, group in groupby(found, key=lambda one: (one[0].low, one[1])):
            alike = list(group)
            changes.append(_change([cell for cell, _ in alike], *alike[0][1]))
    return (*changes, *_addresses(before, after), *_inside(before, after))


def _inside(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    """Compare the text of the rules about commands, files and audit. They don't widen network access."""
    for part in ("commands", "files", "audit"):
        old, new = (_written(getattr(one.document, part)) for one in (before, after))
        if old != new:
            note = "; ".join(
                [*(f"- {line}" for line in old if line not in new), *(f"+ {line}" for line in new if line not in old)]
            )
            same = Outcome(allowed=True)
            yield Change(kind="changed", where=part, note=note[:400], before=same, after=same)


def _written(rules: msgspec.Struct | None) -> list[str]:
    """Write each rule and each other value as one text, by its key."""
    lines: list[str] = []
    given = {} if rules is None else cast("dict[str, object]", msgspec.to_builtins(rules))
    for key, value in given.items():
        each = cast("list[object]", value) if isinstance(value, (list, tuple)) else [value]
        lines += [f"{key}: {one}" for one in each]
    return lines


def _hosts(before: Snapshot, after: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield one name for each set of names with the same rules, and the label of the set."""
    patterns = sorted(before.patterns | after.patterns)
    for pattern in patterns:
        if not pattern.startswith("*."):
            yield pattern, pattern
            continue
        label = "any"
        while f"{label}{pattern[1:]}" in patterns or f"*.{label}{pattern[1:]}" in patterns:
            label += "x"
        yield f"{label}{pattern[1:]}", pattern


def _cells(host: str, where: str, before: Snapshot, after: Snapshot) -> Iterator[Cell]:
    buckets = [bucket for bucket in (before.bucket(host), after.bucket(host)) if bucket is not None]
    rules = [rule for bucket in buckets for rule in bucket.rules]
    edges = sorted({1, _PORTS_END, *(edge for bucket in buckets for edge in bucket.breaks)})
    asked: tuple[list[str | None], tuple[str, ...]] | None = None
    for low, above in pairwise(edge for edge in edges if 1 <= edge <= _PORTS_END):
        target = Target(host, low)
        if not (before.connect(target).allowed or after.connect(target).allowed):
            continue
        asked = asked or (_methods(rules), _paths(rules))
        for method in asked[0]:
            for path in asked[1]:
                yield Cell(where=where, host=host, low=low, high=above - 1, method=method, path=path)


def _methods(rules: Sequence[Rule]) -> list[str | None]:
    named = {"GET", "HEAD", *(method for rule in rules for method in rule.methods or ())} - {"TRACE"}
    return [*sorted(named), None]


def _paths(rules: Sequence[Rule]) -> tuple[str, ...]:
    patterns = {one.text: one for rule in rules for one in rule.paths or ()}
    found = example_paths([patterns[text] for text in sorted(patterns)])
    if any(rule.git for rule in rules):
        found += tuple(path + query for path in found if path.endswith("/info/refs") for query in _GIT)
    return found


def outcome(snapshot: Snapshot, cell: Cell) -> Outcome:
    target, method = Target(cell.host, cell.low), cell.method or OTHER_METHOD
    connected = snapshot.connect(target)
    verdict = snapshot.request(target, "https", method, cell.path)
    if not (connected.allowed and verdict.allowed):
        return Outcome(allowed=False)
    further: object = None
    item = verdict.item or 0
    if verdict.mock is not None:
        mock = snapshot.document.egress.mock[item]
        answer = msgspec.structs.replace(mock, host="", ports=None, methods=None, paths=None)
        further = msgspec.json.encode(answer, order="deterministic").decode()
    elif verdict.git or verdict.registry:
        further = snapshot.document.egress.allow[item]
    return Outcome(
        allowed=True,
        tier=connected.tier,
        secrets=verdict.secrets,
        approve=verdict.approve,
        further=further,
    )


def _change(cells: list[Cell], before: Outcome, after: Outcome) -> Change:
    first = cells[0]
    methods = sorted({cell.method or "others" for cell in cells})
    paths = sorted({cell.path for cell in cells}, key=lambda path: (len(path), path))
    more = f" and {len(paths) - 3} more kinds" if len(paths) > 3 else ""
    return Change(
        kind=_kind(before, after),
        where=first.where,
        ports=_span(first.low, first.high),
        requests=f"{', '.join(methods)} {', '.join(paths[:3])}{more}",
        example=f"{first.method or 'OTHER'} https://{first.host}:{first.low}{first.path}",
        note=_note(before, after),
        before=before,
        after=after,
    )


def _kind(before: Outcome, after: Outcome) -> Literal["allowed", "denied", "changed"]:
    if before.allowed == after.allowed:
        return "changed"
    return "allowed" if after.allowed else "denied"


def _note(before: Outcome, after: Outcome) -> str:
    if not (before.allowed and after.allowed):
        one = after if after.allowed else before
        parts = [] if one.tier is None else [one.tier.value]
        parts += [f"with {name}" for name in one.secrets]
        return ", ".join([*parts, f"asked for {one.approve}"] if one.approve else parts)
    return ", ".join(_differences(before, after))[:200]


def _differences(before: msgspec.Struct, after: msgspec.Struct) -> Iterator[str]:
    for name in before.__struct_fields__:
        old, new = getattr(before, name), getattr(after, name)
        if old == new:
            continue
        if isinstance(old, Allow) and isinstance(new, Allow):
            yield from _differences(old, new)
        else:
            yield f"{name}: {_in_words(old)} → {_in_words(new)}"


def _in_words(value: object) -> str:
    if isinstance(value, Allow):
        return " ".join(_written(value))
    if isinstance(value, tuple):
        return ", ".join(map(str, cast("tuple[object, ...]", value))) or "none"
    return "none" if value is None else str(value)


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


# --- addresses ---


def _addresses(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    """Compare addresses: direct targets, and addresses that allowed names may resolve to."""
    rules = [
        rule for one in (before, after) for rule in (*one.rules.allow, *one.rules.deny) if rule.network is not None
    ]
    edges = sorted({1, _PORTS_END, *(edge for rule in rules for low, high in rule.ports for edge in (low, high + 1))})
    for low, above in pairwise(edges):
        for first, last in _blocks(rules):
            yield from _at(first, last, (low, above - 1), before, after)


def _at(first: Address, last: Address, ports: tuple[int, int], before: Snapshot, after: Snapshot) -> Iterator[Change]:
    where = str(first) if first == last else f"{first} to {last}"
    target = Target(str(first), ports[0])
    dialled = [Outcome(allowed=one.connect(target).allowed) for one in (before, after)]
    by_name = [Outcome(allowed=one.may_lead_to(first, ports[0])) for one in (before, after)]
    for (old, new), what in ((dialled, "connections to the address"), (by_name, "names that lead there")):
        if old != new:
            yield Change(
                kind=_kind(old, new),
                where=where,
                ports=_span(*ports),
                requests=what,
                example=f"{where.partition(' ')[0]} port {ports[0]}",
                before=old,
                after=new,
            )


def _blocks(rules: Sequence[Rule]) -> Iterator[tuple[Address, Address]]:
    """Yield spans of addresses that no rule and no kind of address tells apart."""
    for version, of in ((4, IPv4Address), (6, IPv6Address)):
        networks: list[Network] = [
            one for rule in rules if (one := rule.network) is not None and one.version == version
        ]
        if not networks:
            continue
        networks += TRANSLATED if version == 6 else ()  # the spans of IPv4 decide about those
        networks += [block.network for block in SPECIAL if block.network.version == version]
        ends = [(int(network.network_address), int(network.broadcast_address) + 1) for network in networks]
        edges = sorted({0, 1 << networks[0].max_prefixlen, *(edge for pair in ends for edge in pair)})
        for low, above in pairwise(edges):
            yield of(low), of(above - 1)
