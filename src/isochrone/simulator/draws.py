"""Distributions that workloads are drawn from."""

import random
from bisect import bisect_right
from collections.abc import Sequence
from math import exp, log, sqrt


class Quantiles:
    """A distribution known by some of its quantiles, straight in between (on a logarithmic scale)."""

    def __init__(self, at: Sequence[float], values: Sequence[float]) -> None:
        assert len(at) == len(values) >= 2
        self._at = list(at)
        self._logs = [log(max(value, 1.0)) for value in values]

    def draw(self, chance: random.Random) -> int:
        """A whole number, at least 1."""
        return max(1, round(exp(self._log(chance.random()))))

    def mean(self) -> float:
        """Over 1,000 evenly spaced draws."""
        return sum(exp(self._log((k + 0.5) / 1000)) for k in range(1000)) / 1000

    def _log(self, q: float) -> float:
        at, logs = self._at, self._logs
        if q <= at[0]:
            return logs[0]
        if q >= at[-1]:
            return logs[-1]
        right = bisect_right(at, q)
        share = (q - at[right - 1]) / (at[right] - at[right - 1])
        return logs[right - 1] + share * (logs[right] - logs[right - 1])


SEVEN = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
SHAREGPT_PROMPT = Quantiles(SEVEN, (2, 9, 16, 35, 144, 761, 2863))
SHAREGPT_OUTPUT = Quantiles(SEVEN, (10, 44, 136, 286, 446, 682, 1001))
"""Quantiles of 10,000 ShareGPT conversations' first turns, in tokens (AKafakA/vidur_opt_scheduler, lengths only)."""


def log_normal(chance: random.Random, mean: float, cv: float) -> int:
    """A whole number, at least 1, with this mean and coefficient of variation."""
    if cv <= 0.0:
        return max(1, round(mean))
    variance = log(1.0 + cv * cv)
    return max(1, round(chance.lognormvariate(log(mean) - variance / 2, sqrt(variance))))


def between(chance: random.Random, least: float, most: float) -> int:
    """Even on a logarithmic scale."""
    return max(1, round(least * (most / least) ** chance.random())) if least > 0 else round(most * chance.random())


class Arrivals:
    """Instants in nanoseconds with Gamma gaps: a coefficient of variation of 1 is Poisson, more comes in bursts."""

    def __init__(self, chance: random.Random, rate: float, cv: float = 1.0) -> None:
        self._chance = chance
        self._shape = 1.0 / (cv * cv)
        self._scale_ns = 1e9 / rate / self._shape
        self._at = 0.0

    def next(self) -> int:
        if self._shape == 1.0:
            self._at += self._chance.expovariate(1.0) * self._scale_ns
        else:
            self._at += self._chance.gammavariate(self._shape, self._scale_ns)
        return round(self._at)
