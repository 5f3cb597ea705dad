"""The limits of a run, what it has spent, and why it ended."""

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
    """Tokens as the endpoint counts them. `cached` are part of `input`.

    Example:
        ```python
        print((Tokens(input=10, output=5) + Tokens(input=1)).total)  # 16
        ```
    """

    input: int = 0
    output: int = 0
    cached: int = 0

    @property
    def total(self) -> int:
        """Input and output together."""
        return self.input + self.output

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            input=self.input + other.input, output=self.output + other.output, cached=self.cached + other.cached
        )


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars for a million tokens. paddock knows no prices: you give them.

    Example:
        ```python
        price = Price(input_usd=3, output_usd=15, cached_usd=0.3)
        ```
    """

    input_usd: float
    output_usd: float
    cached_usd: float | None = None
    """None: cached input has the same price as other input."""

    def of(self, tokens: Tokens) -> float:
        """Compute the price of tokens.

        Args:
            tokens: How many.

        Returns:
            US dollars.

        Example:
            ```python
            print(Price(input_usd=3, output_usd=15).of(Tokens(input=1000, output=100)))  # 0.0045
            ```
        """
        cached_usd = self.input_usd if self.cached_usd is None else self.cached_usd
        fresh = max(0, tokens.input - tokens.cached)
        return (fresh * self.input_usd + tokens.cached * cached_usd + tokens.output * self.output_usd) / 1e6


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a run. None means no limit.

    Steps (calls of the model) count for each run, the rest for all that share a Meter.

    Raises:
        InvalidArgumentError: A limit is 0 or less.

    Example:
        ```python
        budget = Budget(max_steps=20, max_tokens=200_000, max_seconds=600, max_usd=2)
        ```
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
        """Raise if the budget limits money and the price is unknown.

        Args:
            price: The price of the model's tokens.
            model: The model's name, for the message.

        Raises:
            InvalidArgumentError: The budget limits money, and the price is None.

        Example:
            ```python
            Budget(max_usd=2).require_price(Price(input_usd=3, output_usd=15), "my-model")
            ```
        """
        if self.max_usd is not None and price is None:
            raise InvalidArgumentError(
                f"max_usd is {self.max_usd:g}, and nobody said what {model} costs",
                hint="price=Price(input_usd=..., output_usd=...); on the command line --price IN:OUT",
            )


class Meter:
    """Counts against a budget, from its creation on. Runs at once may share one.

    Args:
        budget: The limits.

    Example:
        ```python
        meter = Meter(Budget(max_tokens=1000))
        meter.spend(Tokens(input=900, output=50), usd=0.01)
        print(meter.tokens_left())  # 50
        ```
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._tokens = Tokens()
        self._usd = 0.0

    @property
    def tokens(self) -> Tokens:
        """Tokens spent until now."""
        return self._tokens

    @property
    def usd(self) -> float:
        """US dollars spent until now."""
        return self._usd

    @property
    def seconds(self) -> float:
        """Seconds since its creation."""
        return time.monotonic() - self._began

    def spend(self, tokens: Tokens, usd: float) -> None:
        """Count the cost of one call.

        Args:
            tokens: Its tokens.
            usd: Its price in US dollars.

        Example:
            ```python
            meter = Meter(Budget())
            meter.spend(Tokens(input=900, output=50), usd=0.01)
            print(meter.usd, meter.tokens.total)  # 0.01 950
            ```
        """
        with self._lock:
            self._tokens += tokens
            self._usd += usd

    def seconds_left(self) -> float | None:
        """Compute the rest of the time.

        Returns:
            Seconds, at least 0. None: the budget doesn't limit them.

        Example:
            ```python
            print(Meter(Budget(max_seconds=None)).seconds_left())  # None
            ```
        """
        return None if self.budget.max_seconds is None else max(0.0, self.budget.max_seconds - self.seconds)

    def tokens_left(self) -> int | None:
        """Compute the rest of the tokens.

        Returns:
            Tokens, at least 0. None: the budget doesn't limit them.

        Example:
            ```python
            print(Meter(Budget(max_tokens=1000)).tokens_left())  # 1000
            ```
        """
        return None if self.budget.max_tokens is None else max(0, self.budget.max_tokens - self._tokens.total)

    def exceeded(self, steps: int) -> Stop | None:
        """Check the budget.

        Args:
            steps: The steps of this run until now.

        Returns:
            The reason to stop, or None.

        Example:
            ```python
            print(Meter(Budget(max_steps=3)).exceeded(3))  # steps
            ```
        """
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
