"""llm-d's (and the Gateway API inference extension's) default: a weighted blend of three scores.

    2 * queue + 2 * (1 - kv) + 3 * prefix                               the highest score is taken, ties by chance
        queue   (most waiting - waiting) / (most - fewest), 1 where all wait alike: as scraped
        kv      KV usage as scraped
        prefix  cached blocks of 64 tokens over the prompt's blocks

Scraped every 50 ms; nothing that was sent since a scrape is counted. The price is 7 minus the score.
Source: llm-d/llm-d-router ebab6879, `config/charts/routerlib/templates/_config.yaml`, `server/options.go`, and under
`scheduling/`: `scorer/queuedepth`, `scorer/kvcacheutilization`, `scorer/prefix`, `picker/maxscore`. Its index is
approximate, as ours is.
"""

from typing import ClassVar

from isochrone.instances.table import Instance
from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.policies.peers.llm_d import match_ratios
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask

QUEUE_WEIGHT = 2.0
KV_WEIGHT = 2.0
PREFIX_WEIGHT = 3.0
SCORE_HIGHEST = QUEUE_WEIGHT + KV_WEIGHT + PREFIX_WEIGHT


class LlmDBlend(Plain):
    """The blend above; what was never scraped counts as 0."""

    name: ClassVar[str] = "llm-d-blend"
    summary: ClassVar[str] = "llm-d: scores of scraped queue and KV usage and of the prefix, weighted 2, 2, 3"
    term: ClassVar[str] = "score_missed"
    ties_by_hit: ClassVar[bool] = False
    scrape_interval_s: ClassVar[float | None] = 0.05

    def __init__(self, chance: Chance) -> None:
        pass

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        waiting = [_waiting(instance) for instance in pool.members]
        fewest, most = min(waiting), max(waiting)
        prefix = match_ratios(ask, len(waiting))
        prices = []
        for position, instance in enumerate(pool.members):
            queue = (most - waiting[position]) / (most - fewest) if most > fewest else 1.0
            kv_free = 1.0 - _kv_usage(instance)
            score = QUEUE_WEIGHT * queue + KV_WEIGHT * kv_free + PREFIX_WEIGHT * prefix[position]
            prices.append(SCORE_HIGHEST - score)
        return prices


def _waiting(instance: Instance) -> int:
    return (instance.snapshot.waiting if instance.snapshot is not None else None) or 0


def _kv_usage(instance: Instance) -> float:
    return (instance.snapshot.kv_usage_ratio if instance.snapshot is not None else None) or 0.0
