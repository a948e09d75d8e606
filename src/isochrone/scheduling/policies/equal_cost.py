"""Equal cost: the price in seconds of `scheduling/price.py`, with late binding."""

from typing import ClassVar

from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.scheduling import price
from isochrone.scheduling.policies.base import Priced, Quiet
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask, Row
from isochrone.scheduling.terms import cold_terms, equal_cost_terms


class EqualCost(Quiet):
    """Every request where it costs the cluster least, in seconds; requests finish in nearly the same expected time
    wherever they land. While the pool's step model is cold the price is the least pending work."""

    name: ClassVar[str] = "equal-cost"
    summary: ClassVar[str] = "least cost in seconds, own and imposed, with late binding"
    holds: ClassVar[bool] = True
    priced_by_queue: ClassVar[bool] = True

    def __init__(self, chance: Chance) -> None:
        pass

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        if pool.places is not None:
            many = price.equal_cost_matrix if pool.warm else price.cold_matrix
            return many(ask, pool.places.priced, now)
        few = price.equal_cost if pool.warm else price.cold
        return few(ask, pool.rows, now)

    def terms(self, ask: Ask, row: Row, position: int, price_s: float, now: Instant) -> dict[str, float]:
        warm = equal_cost_terms(ask, row, position, now)
        if abs(sum(warm.values()) - price_s) <= 1e-6 * max(1.0, abs(price_s)):
            return warm
        return cold_terms(ask, row, position, now)
