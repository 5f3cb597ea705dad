"""What is said about a series of timings.

Series come in rounds: in each round every contender has had its turn, one right after the other. What the machine
did meanwhile it did to all of a round, so rounds are what is resampled, and ratios are taken within them.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

Rounds = Sequence[Sequence[float]]
Statistic = Callable[[Sequence[float]], float]


@dataclass(frozen=True)
class Summary:
    """In the unit of what was summarized."""

    count: int
    median: float
    p25: float
    p75: float
    p95: float
    p99: float
    best: float


@dataclass(frozen=True)
class Ratio:
    """Of two medians (or means), with the middle 95 % of what resampling the rounds gives."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"

    @property
    def differs(self) -> bool:
        """Whether 1 is outside the interval."""
        return not self.low <= 1.0 <= self.high


def summarize(values: Sequence[float]) -> Summary:
    ordered = sorted(values)

    def quantile(share: float) -> float:
        return ordered[min(len(ordered) - 1, round(share * len(ordered)))]

    median = statistics.median(ordered)
    return Summary(len(ordered), median, quantile(0.25), quantile(0.75), quantile(0.95), quantile(0.99), ordered[0])


def ratio(
    numerator: Rounds, denominator: Rounds, *, statistic: Statistic = statistics.median, resamples: int = 1000
) -> Ratio:
    """`statistic` of all values of one over that of the other. ValueError unless both have the same rounds."""
    rounds = list(zip(numerator, denominator, strict=True))
    if not rounds:
        raise ValueError("no rounds were taken")
    dice = random.Random(0)
    spread = sorted(_of(statistic, dice.choices(rounds, k=len(rounds))) for _ in range(resamples))
    return Ratio(_of(statistic, rounds), spread[int(0.025 * resamples)], spread[int(0.975 * resamples) - 1])


def _of(statistic: Statistic, rounds: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    above, below = (statistic(list(chain.from_iterable(side))) for side in zip(*rounds, strict=True))
    return above / below
