from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.model import (
    Action,
    CreateSandbox,
    Decision,
    ExtendSandbox,
    GetSandbox,
    KillSandbox,
    Limits,
    Principal,
    SandboxSpec,
    replace,
)
from paddock.policy import Policy, local_policy

ME, OTHER = Principal("local:1000"), Principal("local:1001")
KILL = KillSandbox(sandbox="x")


def test_no_rule_allows_nothing() -> None:
    assert Policy().decide(ME, KILL) == Decision(allowed=False, reason="no rule allows this", rule="default")


def test_a_rule_that_breaks_is_a_denial_that_names_it_and_the_error() -> None:
    def broken(*_: Any) -> None:
        raise KeyError("team")

    decision = Policy({"teams": broken, "all": lambda *_: (True, "")}).decide(ME, KILL)
    assert not decision.allowed
    assert decision.rule == "teams"
    assert "KeyError" in decision.reason
    assert "team" in decision.reason


def test_the_first_answer_stands() -> None:
    policy = Policy({"never": lambda *_: None, "first": lambda *_: (True, "r"), "late": lambda *_: (False, "no")})
    assert policy.decide(ME, KILL) == Decision(allowed=True, reason="r", rule="first")


def test_the_own_uid_may_and_nobody_else() -> None:
    policy = local_policy(1000)
    assert policy.decide(ME, KILL).allowed
    for stranger in (OTHER, Principal(""), Principal("local:10000"), Principal("Local:1000")):
        assert not policy.decide(stranger, KILL).allowed


@pytest.mark.parametrize("field", Limits.__fields__)
@pytest.mark.parametrize("value", [10**12, float("inf"), float("nan")])
def test_every_limit_has_a_maximum(field: str, value: float) -> None:
    limits = replace(Limits(), **{field: value})
    decision = local_policy(1000).decide(ME, CreateSandbox(spec=SandboxSpec(limits=limits)))
    assert not decision.allowed
    assert decision.rule == "limits"
    assert field in decision.reason


def test_limits_are_the_last_value_that_is_allowed() -> None:
    policy = local_policy(1000)
    for ttl, allowed in ((30 * 86_400, True), (30 * 86_400 + 0.1, False), (float("nan"), False)):
        assert policy.decide(ME, CreateSandbox(spec=SandboxSpec(ttl_seconds=ttl))).allowed is allowed
        assert policy.decide(ME, ExtendSandbox(sandbox="x", ttl_seconds=ttl)).allowed is allowed


@given(st.text(), st.sampled_from([KILL, GetSandbox(sandbox="a"), CreateSandbox()]))
def test_decide_is_total(who: str, action: Action[Any]) -> None:
    decision = local_policy(1000).decide(Principal(who), action)  # pyright: ignore
    assert decision.allowed is (who == "local:1000")
    assert decision.reason
