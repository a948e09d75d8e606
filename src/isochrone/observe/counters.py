"""Counters of an engine from scrape to scrape: what was added since the last one, with restarts noticed.

An engine that restarts in place begins its counters again. A difference taken over that edge is nonsense, so the
window begins anew at the reset: what the counters show then has all been counted since.
"""

from collections.abc import Mapping


class CounterWindow:
    """Turns successive readings of a set of counters into differences."""

    __slots__ = ("_last", "_started", "resets")

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._started: float | None = None
        self.resets = 0
        """Restarts noticed so far."""

    def advance(self, reading: Mapping[str, float | None], started_at_unix_s: float | None = None) -> dict[str, float]:
        """What each counter has gained since the reading before; the first reading of a counter gains nothing.

        A reset is noticed by any counter going back, or by a later start time, and concerns all of the counters.
        A counter that is missing (None) in this reading keeps its old value.
        """
        counters = {name: value for name, value in reading.items() if value is not None}
        went_back = any(value < self._last.get(name, 0.0) for name, value in counters.items())
        newer = started_at_unix_s is not None and self._started is not None and started_at_unix_s > self._started
        if went_back or newer:
            self.resets += 1
            self._last = dict.fromkeys(self._last, 0.0)
        if started_at_unix_s is not None:
            self._started = max(started_at_unix_s, self._started or 0.0)
        gained = {name: value - self._last.get(name, value) for name, value in counters.items()}
        self._last.update(counters)
        return gained


def mean_of(gained: Mapping[str, float], sum_name: str, count_name: str) -> float | None:
    """Mean over one window of a histogram's sum and count; None where nothing was counted in it."""
    count = gained.get(count_name, 0.0)
    return gained[sum_name] / count if count > 0 and sum_name in gained else None
