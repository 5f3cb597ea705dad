"""The budget of a run, its consumption, and the reason of its end."""

from __future__ import annotations

import threading
import time
from enum import StrEnum

import msgspec

from paddock.errors import InvalidArgumentError


class Stop(StrEnum):
    """Why a run ended."""

    DONE = "done"
    """The model declared the task done, and the verification passed."""
    STEPS = "steps"
    TOKENS = "tokens"
    TIME = "time"
    MONEY = "money"
    MODEL = "model"
    """The endpoint failed. `Run.error` says how."""
    SANDBOX = "sandbox"
    """The sandbox died. `Run.error` says why."""


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a run, as the endpoint counts them. `cached` are part of `input`."""

    input: int = 0
    output: int = 0
    cached: int = 0

    @property
    def total(self) -> int:
        return self.input + self.output

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            input=self.input + other.input, output=self.output + other.output, cached=self.cached + other.cached
        )


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars for a million tokens. paddock knows no prices: they are the caller's."""

    input_usd: float
    output_usd: float
    cached_usd: float | None = None
    """None: cached input has the same price as other input."""

    def of(self, tokens: Tokens) -> float:
        cached_usd = self.input_usd if self.cached_usd is None else self.cached_usd
        fresh = max(0, tokens.input - tokens.cached)
        return (fresh * self.input_usd + tokens.cached * cached_usd + tokens.output * self.output_usd) / 1e6


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a run.

    None means no limit. Steps (calls of the model) count for each run, the rest for all that share a Meter.
    """

    max_steps: int | None = 30
    max_tokens: int | None = None
    max_seconds: float | None = 1800.0
    max_usd: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidArgumentError(f"{name} is {value}: it must be more than 0, or None")

    def require_price(self, price: Price | None, model: str) -> None:
        """Raise InvalidArgumentError if the budget limits money and the price isn't known."""
        if self.max_usd is not None and price is None:
            raise InvalidArgumentError(
                f"max_usd is {self.max_usd:g}, and nobody said what {model} costs",
                hint="price=Price(input_usd=..., output_usd=...); on the command line --price IN:OUT",
            )


class Meter:
    """Counts against a budget, from its making on. Runs at once may share one."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._tokens = Tokens()
        self._usd = 0.0

    @property
    def tokens(self) -> Tokens:
        return self._tokens

    @property
    def usd(self) -> float:
        return self._usd

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def spend(self, tokens: Tokens, usd: float) -> None:
        with self._lock:
            self._tokens += tokens
            self._usd += usd

    def seconds_left(self) -> float | None:
        return None if self.budget.max_seconds is None else max(0.0, self.budget.max_seconds - self.seconds)

    def tokens_left(self) -> int | None:
        return None if self.budget.max_tokens is None else max(0, self.budget.max_tokens - self._tokens.total)

    def exceeded(self, steps: int) -> Stop | None:
        """Return the exhausted limit, after so many steps of this run, or None."""
        budget = self.budget
        if self.seconds_left() == 0.0:
            return Stop.TIME
        if budget.max_usd is not None and self._usd >= budget.max_usd:
            return Stop.MONEY
        if self.tokens_left() == 0:
            return Stop.TOKENS
        if budget.max_steps is not None and steps >= budget.max_steps:
            return Stop.STEPS
        return None
