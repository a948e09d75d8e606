"""Time as the core sees it: an integer that a driver passes in."""

from typing import TypeAlias

Instant: TypeAlias = int
"""Nanoseconds on a clock that never goes back. Only differences mean anything."""

MILLISECOND = 1_000_000
SECOND = 1_000_000_000


def seconds(span: int) -> float:
    """Length of a span between two instants, in seconds."""
    return span / SECOND


def nanoseconds(span_s: float) -> int:
    """A span in seconds as the difference of two instants, rounded to the nanosecond."""
    return round(span_s * SECOND)
