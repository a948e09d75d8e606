"""The better of two instances drawn by chance."""

from typing import ClassVar

from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import NEVER, Plain, Priced
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask


class PowerOfTwo(Plain):
    """Two different instances by chance; the one with fewer requests in flight (Mitzenmacher, TPDS 2001)."""

    name: ClassVar[str] = "power-of-two"
    summary: ClassVar[str] = "fewer requests of two drawn by chance"
    term: ClassVar[str] = "requests"

    def __init__(self, chance: Chance) -> None:
        self._chance = chance

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        rows = pool.rows
        count = len(rows)
        if count <= 2:
            return [row.running * row.share for row in rows]
        first = int(self._chance.random() * count)
        second = (first + 1 + int(self._chance.random() * (count - 1))) % count
        prices = [NEVER] * count
        for position in (first, second):
            prices[position] = rows[position].running * rows[position].share
        return prices
