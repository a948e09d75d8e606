"""A token bucket in whole numbers: what may be used in a minute, refilled without a tick and without rounding.

The level is counted in units of which one use costs as many as a minute has nanoseconds. So a limit of L a minute
refills exactly L units a nanosecond, and a million refills after one nanosecond each give what one refill after a
millisecond gives.
"""

from isochrone.nouns.instant import SECOND, Instant

MINUTE = 60 * SECOND


class Bucket:
    """Holds at most one minute's worth. May be in debt: what was used beyond what had been set aside is waited for."""

    __slots__ = ("_at", "_full", "_level", "limit")

    def __init__(self, limit: int, now: Instant) -> None:
        assert limit > 0
        self.limit = limit
        """Uses a minute."""
        self._full = self._level = limit * MINUTE
        self._at = now

    def refill(self, now: Instant) -> None:
        """Bring the level up to now. Time that goes back changes nothing."""
        if now > self._at:
            self._level = min(self._full, self._level + self.limit * (now - self._at))
            self._at = now

    def holds(self, uses: int) -> bool:
        """Whether so many can be taken at once."""
        return self._level >= uses * MINUTE

    def take(self, uses: int) -> None:
        """Use; a negative number gives back. Never fuller than full."""
        self._level = min(self._full, self._level - uses * MINUTE)

    @property
    def remaining(self) -> int:
        """Uses that are left now."""
        return max(0, self._level // MINUTE)

    def wait_ns(self, uses: int) -> int:
        """How long until so many are there, if nobody takes any; at most a full bucket is waited for."""
        missing = min(uses * MINUTE, self._full) - self._level
        return max(0, -(-missing // self.limit))

    def reset_ns(self) -> int:
        """How long until it is full."""
        return -((self._level - self._full) // self.limit)

    def change(self, limit: int, now: Instant) -> None:
        """Another limit: what has been used and not been refilled yet counts against it."""
        self.refill(now)
        used = self._full - self._level
        self.limit = limit
        self._full = limit * MINUTE
        self._level = self._full - used
