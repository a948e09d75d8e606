"""smg's `power_of_two`: two instances by chance, the one with less of its KV memory in use.

KV usage as polled every 10 s; where one of the two has never been polled, both are compared by requests in flight.
Of equals the first drawn. Source: lightseekorg/smg 73da68ca, `policies/power_of_two.rs`.
"""

from typing import ClassVar

from isochrone.instances.table import Instance
from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import SECOND, Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask

POLL_NS = 10 * SECOND


class SmgPowerOfTwo(Plain):
    """The price is 0 for the better of the two, 1 for the other, 2 for everybody else."""

    name: ClassVar[str] = "smg-power-of-two"
    summary: ClassVar[str] = "smg: the one of two drawn by chance that polls said had more KV memory free"
    term: ClassVar[str] = "place"
    listens: ClassVar[bool] = True
    ties_by_hit: ClassVar[bool] = False

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._usage: dict[int, tuple[Instant, float]] = {}
        """When polled, and KV usage, by slot."""

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        count = len(pool.rows)
        if count == 1:
            return [0.0]
        first = int(self._chance.random() * count)
        second = (first + 1 + int(self._chance.random() * (count - 1))) % count
        if self._is_less(pool, second, first):
            first, second = second, first
        prices = [2.0] * count
        prices[first], prices[second] = 0.0, 1.0
        return prices

    def observed(self, instance: Instance, now: Instant) -> None:
        before, snapshot = self._usage.get(instance.slot), instance.snapshot
        if snapshot is None or snapshot.kv_usage_ratio is None or (before is not None and now - before[0] < POLL_NS):
            return
        self._usage[instance.slot] = (now, snapshot.kv_usage_ratio)

    def gone(self, instance: Instance) -> None:
        self._usage.pop(instance.slot, None)

    def _is_less(self, pool: Pool, one: int, other: int) -> bool:
        mine, others = self._usage.get(pool.slots[one]), self._usage.get(pool.slots[other])
        if mine is not None and others is not None:
            return mine[1] < others[1]
        return pool.members[one].ledger.in_flight < pool.members[other].ledger.in_flight
