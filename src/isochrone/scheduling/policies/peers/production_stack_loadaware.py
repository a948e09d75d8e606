"""production-stack's `loadaware`: share of the prompt that is cached, less the load against the mean.

    matched / n - 1.0 * (R - mean R) / max(1, mean R)           the highest score is taken
        matched  cached tokens of the prompt; n: its tokens; R: requests that this gateway has in flight

The price is 1 minus the score. Source: the description of vllm-project/production-stack's pull request 1035, merged in
August 2026; its matches come from LMCache's controller, here from our index.
"""

from statistics import fmean
from typing import ClassVar

from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.policies.peers.ranks import in_flight
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask

BETA = 1.0


class ProductionStackLoadaware(Plain):
    """The score above."""

    name: ClassVar[str] = "production-stack-loadaware"
    summary: ClassVar[str] = "production-stack: share of the prompt cached less load relative to the mean"
    term: ClassVar[str] = "score_missed"
    ties_by_hit: ClassVar[bool] = False

    def __init__(self, chance: Chance) -> None:
        pass

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        loads = in_flight(pool)
        mean = fmean(loads)
        hits = ask.hits if ask.hits is not None else [0] * len(loads)
        return [
            1.0 - int(hit) / ask.prompt_tokens + BETA * (load - mean) / max(1.0, mean)
            for hit, load in zip(hits, loads, strict=True)
        ]
