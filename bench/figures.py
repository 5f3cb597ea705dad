"""What is said about a series of timings."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """Milliseconds."""

    count: int
    median: float
    p95: float
    best: float


@dataclass(frozen=True)
class Ratio:
    """Of two medians, with the middle 95 % of what resampling the pairs gives."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def summarize(seconds: list[float]) -> Summary:
    ordered = sorted(value * 1000 for value in seconds)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
    return Summary(count=len(ordered), median=statistics.median(ordered), p95=p95, best=ordered[0])


def ratio(numerator: list[float], denominator: list[float], *, resamples: int = 1000) -> Ratio:
    """The series were taken in pairs, one right after the other: they are resampled in pairs."""
    dice = random.Random(0)
    pairs = list(zip(numerator, denominator, strict=True))
    spread: list[float] = []
    for _ in range(resamples):
        sample = dice.choices(pairs, k=len(pairs))
        spread.append(statistics.median(a for a, _ in sample) / statistics.median(b for _, b in sample))
    spread.sort()
    value = statistics.median(numerator) / statistics.median(denominator)
    return Ratio(value, spread[int(0.025 * resamples)], spread[int(0.975 * resamples) - 1])
