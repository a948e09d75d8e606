"""Pick one of the priced candidates."""

from collections.abc import Collection, Sequence

import numpy as np

from isochrone.nouns.chance import Chance
from isochrone.scheduling.policies.base import NEVER, Priced
from isochrone.scheduling.pool import Pool


def cheapest(prices: Priced, hits: Sequence[int] | None, chance: Chance) -> int | None:
    """Position of the smallest price; None where all are infinite. Ties: the deeper hit, then chance."""
    if isinstance(prices, np.ndarray):
        least = prices.min()
        if not least < NEVER:
            return None
        tied = np.flatnonzero(prices == least).tolist()
    else:
        least = min(prices)
        if not least < NEVER:
            return None
        if prices.count(least) == 1:
            return prices.index(least)
        tied = [position for position, price in enumerate(prices) if price == least]
    if len(tied) == 1:
        return int(tied[0])
    if hits is not None:
        deepest = max(hits[position] for position in tied)
        tied = [position for position in tied if hits[position] == deepest]
    return int(tied[int(chance.random() * len(tied))])


def without(prices: Priced, pool: Pool, barred: Collection[int]) -> Priced:
    """The prices with the barred slots at infinity."""
    if not barred:
        return prices
    left = [NEVER if slot in barred else float(price) for slot, price in zip(pool.slots, prices, strict=True)]
    return np.array(left) if isinstance(prices, np.ndarray) else left
