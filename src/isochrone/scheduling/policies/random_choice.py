"""Any instance, by chance."""

from typing import ClassVar

from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask


class RandomChoice(Plain):
    """A uniform draw, whatever the load."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "any instance, by chance"
    term: ClassVar[str] = "draw"

    def __init__(self, chance: Chance) -> None:
        self._chance = chance

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        return [self._chance.random() for _ in pool.rows]
