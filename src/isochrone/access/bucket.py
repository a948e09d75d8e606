"""A token bucket in whole numbers: what may be used in a minute, refilled without a tick and without rounding.

The level is counted in units of which one use costs as many as a minute has nanoseconds. So a limit of L a minute
refills exactly L units a nanosecond, and a million refills after one nanosecond each give what one refill after a
millisecond gives.
"""

from isochrone.nouns.instant import MILLISECOND, SECOND, Instant

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

    def offers(self, now: Instant, uses: int) -> bool:
        """`refill`, then `holds`, in one call."""
        if now > self._at:
            level = self._level + self.limit * (now - self._at)
            self._level = level if level < self._full else self._full
            self._at = now
        return self._level >= uses * MINUTE

    def take(self, uses: int) -> None:
        """Use; a negative number gives back. Never fuller than full."""
        level = self._level - uses * MINUTE
        self._level = level if level < self._full else self._full

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

    def standing(self, now: Instant) -> tuple[int, int, bytes]:
        """Limit, what remains, and how long until it is full."""
        self.refill(now)
        level, full = self._level, self._full
        remaining = level // MINUTE if level > 0 else 0
        return self.limit, remaining, duration(-((level - full) // self.limit))

    def change(self, limit: int, now: Instant) -> None:
        """Another limit: what has been used and not been refilled yet counts against it."""
        self.refill(now)
        used = self._full - self._level
        self.limit = limit
        self._full = limit * MINUTE
        self._level = self._full - used


def duration(span_ns: int) -> bytes:
    """A span as OpenAI's headers write it: `20ms`, `7s`, `1m30s`; rounded up."""
    if span_ns < SECOND:
        return b"%dms" % -(-span_ns // MILLISECOND)
    minutes, whole_s = divmod(-(-span_ns // SECOND), 60)
    return b"%dm%ds" % (minutes, whole_s) if minutes else b"%ds" % whole_s
