"""The one reader of the clock. Everything below the gateway gets `now` passed in."""

import time

from isochrone.nouns.instant import Instant

now = time.monotonic_ns
"""The present as an `Instant`: nanoseconds on a clock that never goes back. Only differences mean anything."""


def wall_s() -> float:
    """Seconds since 1970, for log lines and for `created` fields; never used to measure a span."""
    return time.time()


def after(start: Instant, span_s: float) -> Instant:
    """The instant that lies `span_s` seconds after `start`."""
    return start + int(span_s * 1_000_000_000)
