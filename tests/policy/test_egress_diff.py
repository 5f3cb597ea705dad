"""A comparison finds what asking both policies about everything finds, and nothing else."""

from __future__ import annotations

from hypothesis import HealthCheck, assume, given, settings

from paddock.errors import PolicyInvalidError
from paddock.model import PolicyDocument, Target
from paddock.policy.egress import Change, Snapshot, compile, diff, load
from paddock.policy.egress._diff import OTHER_METHOD, Cell, outcome
from tests.policy.policy_drawing import ADDRESSES, GIT_PATHS, METHODS, NAMES, PATHS, PORTS, documents

thorough = settings(deadline=None, suppress_health_check=list(HealthCheck))


def compiled(document: PolicyDocument) -> Snapshot:
    try:
        return compile(document)
    except PolicyInvalidError:
        assume(False)  # rules that disagree
        raise


def is_about(change: Change, name: str, port: int) -> bool:
    low, _, high = change.ports.partition("-")
    where = change.where
    return int(low) <= port <= int(high or low) and (
        name == where or (where.startswith("*.") and name.endswith(where[1:]))
    )


@thorough
@given(documents, documents)
def test_every_request_that_two_policies_judge_differently_is_in_their_difference(
    one: PolicyDocument, other: PolicyDocument
) -> None:
    before, after = compiled(one), compiled(other)
    changes = diff(before, after)
    for name in NAMES:
        for port in PORTS:
            for method in (*METHODS, OTHER_METHOD):
                for path in GIT_PATHS if name == "github.test" else PATHS:
                    cell = Cell(where=name, host=name, low=port, high=port, method=method, path=path)
                    outcomes = outcome(before, cell), outcome(after, cell)
                    if outcomes[0] == outcomes[1]:
                        continue
                    found = [change for change in changes if is_about(change, name, port)]
                    assert outcomes in [(change.before, change.after) for change in found], (cell, outcomes)


@thorough
@given(documents, documents)
def test_everything_in_the_difference_is_different(one: PolicyDocument, other: PolicyDocument) -> None:
    before, after = compiled(one), compiled(other)
    for change in diff(before, after):
        if "://" not in change.example:
            continue
        method, _, url = change.example.partition(" https://")
        host, _, rest = url.partition(":")
        port, slash, path = rest.partition("/")
        method = OTHER_METHOD if method == "OTHER" else method
        cell = Cell(where=host, host=host, low=int(port), high=int(port), method=method, path=slash + path)
        assert (outcome(before, cell), outcome(after, cell)) == (change.before, change.after)
        assert change.before != change.after


@thorough
@given(documents, documents)
def test_every_address_that_two_policies_judge_differently_is_in_their_difference(
    one: PolicyDocument, other: PolicyDocument
) -> None:
    before, after = compiled(one), compiled(other)
    changes = [change for change in diff(before, after) if change.requests == "connections to the address"]
    for address in ADDRESSES:
        for port in PORTS:
            kinds = [snapshot.connect(Target(address, port)).allowed for snapshot in (before, after)]
            if kinds[0] == kinds[1] or address.startswith("::ffff:"):
                continue
            wanted = "allowed" if kinds[1] else "denied"
            assert wanted in {change.kind for change in changes if has_port(change, port)}


def has_port(change: Change, port: int) -> bool:
    low, _, high = change.ports.partition("-")
    return int(low) <= port <= int(high or low)


@thorough
@given(documents)
def test_a_policy_does_not_differ_from_itself(document: PolicyDocument) -> None:
    assert diff(compiled(document), compile(document)) == ()


def changes(before: str, after: str) -> list[tuple[str, str, str]]:
    found = diff(load(f"egress: {before}\n").snapshot, load(f"egress: {after}\n").snapshot)
    return [(one.kind, one.where, one.ports) for one in found]


def test_what_widens_is_told_in_words() -> None:
    assert changes("{allow: [{host: a.test}]}", "{allow: [{host: a.test, ports: [443]}]}") == [
        ("denied", "a.test", "80")
    ]
    assert changes("{}", "{allow: [{host: '*.a.test', ports: [1]}]}") == [("allowed", "*.a.test", "1")]
    found = changes("{allow: [{host: a.test}]}", "{allow: [{host: a.test}], deny: [{host: a.test, paths: ['/x/**']}]}")
    assert {kind for kind, _, _ in found} == {"denied", "changed"}  # it is looked into from now on
    assert changes("{}", "{allow: [{cidr: 10.1.0.0/16, ports: [5432]}]}") == [
        ("allowed", "10.1.0.0 to 10.1.255.255", "5432"),
        ("allowed", "10.1.0.0 to 10.1.255.255", "5432"),
    ]


def test_an_escaped_slash_that_only_one_policy_lets_through_is_found() -> None:
    allow = "egress: {allow: [{host: a.test, paths: ['/p/**']}]"
    before, after = (
        load(f"{allow}}}\n").snapshot,
        load(f"{allow}, deny: [{{host: a.test, paths: ['/p/q/x']}}]}}\n").snapshot,
    )
    assert any("/p/q%2Fx" in one.requests for one in diff(before, after))
