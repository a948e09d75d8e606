"""Peers that decide by rules and not by a score: the order in which a rule would take the rows, as prices.

The price is the place in that order (0: taken, 1: taken if that one is barred, ...). It breaks ties as the peer does.
"""

from collections.abc import Sequence
from typing import Any

from isochrone.scheduling.pool import Pool


def in_flight(pool: Pool) -> list[int]:
    """Requests that this gateway has on each member: all that a peer with counts of its own knows."""
    return [instance.ledger.in_flight for instance in pool.members]


def places(keys: Sequence[Any], first: int | None = None) -> list[float]:
    """Places of the rows by ascending key, equal keys by position; `first` goes before all others."""
    order = sorted(range(len(keys)), key=keys.__getitem__)
    if first is not None:
        order.remove(first)
        order.insert(0, first)
    found = [0.0] * len(keys)
    for place, position in enumerate(order):
        found[position] = float(place)
    return found
