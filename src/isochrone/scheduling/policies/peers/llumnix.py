"""Llumnix (v0): the instance whose free KV blocks last longest.

    steps left = (free blocks - blocks that waiting requests need) / (running + waiting)       the most is taken
    instances with fewer than 10 steps left are passed over while there are others

All of it is what the engines told the manager last, every 50 ms. Source: AlibabaPAI/llumnix 24220fb8,
`load_computation.py` (`RemainingStepsLoad`), `dispatch_policy.py`, `config/default.py` (policy `load`, metric
`remaining_steps`, top 1). Running requests are not moved here: that needs patched engines and is off by default there
too. vLLM's metrics count waiting requests and not their blocks: these are those of our latest so many attempts without
a first token. An instance that does not say how much KV memory it has comes after all others, by requests in flight.
The price is minus the steps left.
"""

from typing import ClassVar

from isochrone.instances.table import Instance
from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask

BLOCK_TOKENS = 16
BUSY_STEPS = 10.0
IDLE = -1e12
"""Price of an instance without requests: its blocks last for ever."""
BUSY = 1e12
"""Added to the price of a busy one."""
UNKNOWN = 1e15


class Llumnix(Plain):
    """The rule above."""

    name: ClassVar[str] = "llumnix"
    summary: ClassVar[str] = "Llumnix: most decode steps until KV memory is full, as the engines last said"
    term: ClassVar[str] = "steps_left_negative"
    ties_by_hit: ClassVar[bool] = False
    scrape_interval_s: ClassVar[float | None] = 0.05

    def __init__(self, chance: Chance) -> None:
        pass

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        return [_price(instance) for instance in pool.members]


def _price(instance: Instance) -> float:
    snapshot = instance.snapshot
    if snapshot is None or not snapshot.kv_capacity_tokens or snapshot.kv_usage_ratio is None:
        return UNKNOWN + instance.ledger.in_flight
    waiting = snapshot.waiting or 0
    requests = (snapshot.running or 0) + waiting
    if requests == 0:
        return IDLE
    free = (1.0 - snapshot.kv_usage_ratio) * snapshot.kv_capacity_tokens // BLOCK_TOKENS
    steps = (free - _blocks_waiting(instance, waiting)) / requests
    return -steps if steps >= BUSY_STEPS else BUSY - steps


def _blocks_waiting(instance: Instance, waiting: int) -> int:
    latest = list(instance.ledger.waiting.values())[-waiting:] if waiting > 0 else []
    return sum(-(-flight.prompt_tokens // BLOCK_TOKENS) for flight in latest)
