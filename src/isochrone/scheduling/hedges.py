"""When a first token is late enough to ask a second instance, and how often that may be done."""

import heapq
from math import exp, log

from isochrone.nouns.instant import MILLISECOND, Instant, nanoseconds, seconds

SHARE = 0.95
"""Late is what comes after so many of a hundred."""
STEP = 0.05
"""Of the logarithm; a factor of 2 is learnt within some 15 late samples."""
START, LEAST, MOST = log(3.0), log(1.2), log(30.0)
WAIT_NS_MIN = 50 * MILLISECOND
"""Nobody is asked twice sooner: a network has pauses too."""
UNCACHED_TOKENS_MAX = 512
"""Prompt tokens to be computed. Asking twice computes them twice."""
SAVED_REQUESTS_MAX = 10.0
"""Second requests that may be saved up."""


class Lateness:
    """How much later than forecast first tokens come: the 95th percentile of real over forecast, learnt as they come.

    A quantile is followed by small steps: up by .95 of a step where a sample lies above it, down by .05 where it lies
    below; where it stays, 5 % lie above. About 0.3 us a sample.
    """

    __slots__ = ("_log",)

    def __init__(self) -> None:
        self._log = START

    @property
    def factor(self) -> float:
        """A first token that takes more than its forecast times this is one of the latest 5 %."""
        return exp(self._log)

    def observe(self, real_s: float, forecast_s: float) -> None:
        """One first token. Forecasts of nothing say nothing."""
        if real_s > 0.0 and forecast_s > 0.0:
            above = log(real_s / forecast_s) > self._log
            self._log = min(max(self._log + STEP * (SHARE if above else SHARE - 1.0), LEAST), MOST)


class Hedges:
    """Which attempts are looked at when, and the budget."""

    __slots__ = ("asked", "due", "lateness", "saved")

    def __init__(self) -> None:
        self.lateness = Lateness()
        self.due: list[tuple[Instant, int]] = []
        """A heap of (when its first token is late, attempt): each attempt of a small prompt, until that moment."""
        self.saved = 0.0
        """Second requests that may be sent now."""
        self.asked = 0
        """Second requests sent."""

    def sent(self, now: Instant, attempt: int, uncached_tokens: int, ttft_s: float, ratio: float, many: bool) -> None:
        """The first attempt of a request. `many`: it is a stream, and there is another instance."""
        self.saved = min(self.saved + ratio, SAVED_REQUESTS_MAX)
        if many and uncached_tokens < UNCACHED_TOKENS_MAX:
            heapq.heappush(self.due, (now + self._wait_ns(ttft_s), attempt))

    def came(self, now: Instant, dispatched_at: Instant, forecast_s: float | None) -> None:
        """The first token of a request's first attempt. One that is late has been counted as such."""
        if forecast_s is not None and now - dispatched_at < self._wait_ns(forecast_s):
            self.lateness.observe(seconds(now - dispatched_at), forecast_s)

    def late(self, now: Instant, dispatched_at: Instant, forecast_s: float | None) -> None:
        """The moment has passed, and no token has come: however long it will take, it is one of the latest."""
        if forecast_s is not None:
            self.lateness.observe(seconds(now - dispatched_at), forecast_s)

    def _wait_ns(self, ttft_s: float) -> int:
        return max(WAIT_NS_MIN, nanoseconds(ttft_s * self.lateness.factor))
