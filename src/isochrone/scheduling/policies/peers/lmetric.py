"""LMetric: uncached work times the batch that it delays.

    (P + u) * (R + 1)
        P  uncached prompt tokens sent and without a first token
        u  uncached tokens of this prompt there
        R  requests in flight

Source: arXiv 2603.15202 (its abstract) and, for the `+ 1`, a public reproduction of it (sglang pull request 29574). The
paper's router knows the engines' caches; here the hits are those of our index.
"""

from typing import ClassVar

import numpy as np

from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.policies.followed import Followed, hits_of, in_flight, waiting_tokens
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask


class LMetric(Plain):
    """The product above."""

    name: ClassVar[str] = "lmetric"
    summary: ClassVar[str] = "LMetric: pending and own uncached tokens times requests in flight"
    term: ClassVar[str] = "token_requests"
    ties_by_hit: ClassVar[bool] = False

    def __init__(self, chance: Chance) -> None:
        self._counts = Followed(lambda row, instance: waiting_tokens(row, instance) + in_flight(row, instance))

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        tokens, hits = ask.prompt_tokens, ask.hits
        if pool.places is not None:
            pending, requests = self._counts.of(pool)
            prices: np.ndarray = (pending + tokens - hits_of(hits)) * (requests + 1)
            return prices
        return [
            float(
                (instance.ledger.waiting_tokens + tokens - (int(hits[position]) if hits is not None else 0))
                * (instance.ledger.in_flight + 1)
            )
            for position, instance in enumerate(pool.members)
        ]
