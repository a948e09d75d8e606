"""How often attempts on an instance have failed lately: what it costs, on average, to do it again.

A request that fails with probability p is tried 1/(1 - p) times on average, so own work is multiplied by that. The
life cycle puts out an instance that fails in a row; this is for the one that fails now and then.
"""

import msgspec

from isochrone.nouns.instant import SECOND, Instant

GAIN = 1 / 16
HALF_LIFE_NS = 60 * SECOND
"""A rate halves in this time even where no attempt comes to show better."""
RATE_MIN = 0.005
"""Less than this is none."""
TRIES_MAX = 10.0
"""More tries than this are never expected, however much fails."""


class FailureRate(msgspec.Struct, gc=False):
    """Share of failed attempts, moving. Client errors and "busy" are no failures, and tell nothing."""

    rate: float = 0.0
    at: Instant = 0

    def observe(self, failed: bool, now: Instant) -> None:
        """An attempt was answered, or failed by the instance."""
        if failed or self.rate:
            rate = self.now(now)
            self.rate = rate + GAIN * (failed - rate)
            self.at = now

    def now(self, now: Instant) -> float:
        """The rate as of now; 0 below RATE_MIN."""
        if not self.rate:
            return 0.0
        rate: float = self.rate * 0.5 ** ((now - self.at) / HALF_LIFE_NS)
        return min(rate, 1.0 - 1.0 / TRIES_MAX) if rate >= RATE_MIN else 0.0

    def tries(self, now: Instant) -> float:
        """How often a request is sent until one attempt succeeds, on average: 1 where nothing failed."""
        return 1.0 / (1.0 - self.now(now)) if self.rate else 1.0
