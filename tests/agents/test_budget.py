"""What may be spent is refused, counted and ended as `Budget` says."""

from __future__ import annotations

import pytest

from paddock.agents import Agent, Budget, Meter, Price, ScriptModel, Stop, Tokens
from paddock.errors import InvalidArgumentError
from tests.agents.scripts import says


def test_money_without_a_price_is_refused_before_anything_runs() -> None:
    with pytest.raises(InvalidArgumentError, match="nobody said what script costs"):
        Agent(ScriptModel([says("done")]), budget=Budget(max_usd=1.0))


@pytest.mark.parametrize("field", ["max_steps", "max_tokens", "max_seconds", "max_usd"])
def test_a_limit_of_nothing_is_refused(field: str) -> None:
    with pytest.raises(InvalidArgumentError, match=field):
        Budget(**{field: 0})


def test_each_limit_is_named_when_it_is_used_up() -> None:
    spent = Tokens(input=90, output=10)
    unlimited = {"max_steps": None, "max_seconds": None}
    for field, limit, stop in (("max_tokens", 100, Stop.TOKENS), ("max_usd", 0.5, Stop.MONEY)):
        meter = Meter(Budget(**{**unlimited, field: limit}))
        assert meter.exceeded(1000) is None
        meter.spend(spent, 0.5)
        assert meter.exceeded(0) is stop
    assert Meter(Budget(max_steps=3)).exceeded(2) is None
    assert Meter(Budget(max_steps=3)).exceeded(3) is Stop.STEPS
    assert Meter(Budget(max_seconds=1e-9)).exceeded(0) is Stop.TIME


def test_cached_input_has_its_own_price() -> None:
    price = Price(input_usd=3.0, output_usd=15.0, cached_usd=0.3)
    tokens = Tokens(input=1_000_000, output=100_000, cached=600_000)
    assert price.of(tokens) == pytest.approx(0.4 * 3.0 + 0.6 * 0.3 + 1.5)
    assert Price(input_usd=3.0, output_usd=15.0).of(tokens) == pytest.approx(3.0 + 1.5)
