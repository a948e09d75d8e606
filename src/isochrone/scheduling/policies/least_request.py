"""The instance with the fewest requests in flight."""

from typing import ClassVar

from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask


class LeastRequest(Plain):
    """Requests in flight over the weight, ours and (by scrapes) others'."""

    name: ClassVar[str] = "least-request"
    summary: ClassVar[str] = "fewest requests in flight"
    term: ClassVar[str] = "requests"

    def __init__(self, chance: Chance) -> None:
        pass

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        return [row.running * row.share for row in pool.rows]
