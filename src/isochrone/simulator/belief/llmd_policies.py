"""The four schedulers of llm-d's prefix-routing reports, as they were configured there.

    wq * queue + wk * (1 - kv) + wp * prefix        the highest score is taken, ties by chance
        queue   (most waiting - waiting) / (most - fewest), 1 where all wait alike; as scraped
        kv      KV usage as scraped

precise: prefix is the share of the prompt's blocks that the instance's cache holds. They know it from cache events;
here it is the gateway's index, which takes what was sent for cached and forgets as much as the instance has room for.
estimated (default in the other report): the router's own memory of what it sent where, 31,250 blocks of 64 characters
an instance, and of each prompt no more than the first 256 blocks, some 4,096 tokens. load: no prefix. random: no score.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from isochrone.instances.table import Instance
from isochrone.kv.hashing import block_end
from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies import exists, register
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.policies.peers.llm_d import match_ratios
from isochrone.scheduling.policies.peers.routed import RoutedText
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask

MEMORY_BYTES = 31_250 * 64
MATCH_BYTES = 256 * 64
SWEEP_S = 1.0
SCRAPE_INTERVAL_S = 0.05
"""How often the endpoint picker reads metrics."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Of the three scores."""

    queue: float
    kv: float
    prefix: float


class Blend(Plain):
    """The score above, with prefixes from the gateway's index."""

    name: ClassVar[str] = "llm-d-report"
    summary: ClassVar[str] = "a scheduler of llm-d's prefix-routing reports"
    term: ClassVar[str] = "score_missed"
    ties_by_hit: ClassVar[bool] = False
    scrape_interval_s: ClassVar[float | None] = SCRAPE_INTERVAL_S

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        weights = self._weights
        waiting = [_waiting(instance) for instance in pool.members]
        fewest, most = min(waiting), max(waiting)
        spread = most - fewest
        prefix = self.prefixes(ask, request, pool) if weights.prefix else [0.0] * len(waiting)
        prices = []
        for position, instance in enumerate(pool.members):
            queue = (most - waiting[position]) / spread if spread else 1.0
            score = weights.queue * queue + weights.kv * (1.0 - _kv_usage(instance)) + weights.prefix * prefix[position]
            prices.append(weights.queue + weights.kv + weights.prefix - score)
        return prices

    def prefixes(self, ask: Ask, request: Request, pool: Pool) -> list[float]:
        """Share of the prompt that each row's instance holds."""
        return match_ratios(ask, len(pool.members))


class Estimated(Blend):
    """The same, with prefixes from the router's own memory."""

    listens: ClassVar[bool] = True

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self._sent = RoutedText(MEMORY_BYTES, SWEEP_S)

    def prefixes(self, ask: Ask, request: Request, pool: Pool) -> list[float]:
        seen = min(MATCH_BYTES, request.hashed_bytes)
        return [
            min(block_end(hit - 1), seen) / seen if hit else 0.0 for hit in self._sent.hits(request.blocks, pool.slots)
        ]

    def chosen(self, ask: Ask, request: Request, pool: Pool, position: int, now: Instant) -> None:
        self._sent.insert(pool.slots[position], _within(request), now)

    def gone(self, instance: Instance) -> None:
        self._sent.remove(instance.slot)


def _within(request: Request) -> tuple[int, ...]:
    """The prompt's blocks that the router looks at."""
    count = 0
    while count < len(request.blocks) and block_end(count) <= MATCH_BYTES:
        count += 1
    return request.blocks[:count]


def _waiting(instance: Instance) -> int:
    return (instance.snapshot.waiting if instance.snapshot is not None else None) or 0


def _kv_usage(instance: Instance) -> float:
    return (instance.snapshot.kv_usage_ratio if instance.snapshot is not None else None) or 0.0


def named(kind: type[Blend], weights: Weights) -> str:
    """Name under which a Cluster finds the scheduler; registered when first asked for."""
    name = f"llm-d-report-{kind.__name__.lower()}-{weights.queue:g}-{weights.kv:g}-{weights.prefix:g}"
    if not exists(name):
        register(name, _factory(name, kind, weights), listed=False)
    return name


def _factory(name: str, kind: type[Blend], weights: Weights) -> Callable[[Chance], Blend]:
    variant = type(kind.__name__, (kind,), {"name": name})

    def make(chance: Chance) -> Blend:
        made: Blend = variant(weights)
        return made

    return make
