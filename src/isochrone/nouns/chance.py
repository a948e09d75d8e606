"""Chance as the core sees it: a seeded generator that a driver passes in."""

from typing import Protocol


class Chance(Protocol):
    """The part of `random.Random` that the core uses."""

    def random(self) -> float:
        """A number in [0, 1)."""
        ...
