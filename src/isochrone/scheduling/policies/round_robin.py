"""Each instance in turn."""

from typing import ClassVar

from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask


class RoundRobin(Plain):
    """The instance after the one that was chosen last, by slot, per model."""

    name: ClassVar[str] = "round-robin"
    summary: ClassVar[str] = "each instance in turn"
    term: ClassVar[str] = "places_to_go"

    def __init__(self, chance: Chance) -> None:
        self._last_slot: dict[str, int] = {}

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        last = self._last_slot.get(pool.model, -1)
        slots = pool.slots
        span = max(max(slots, default=0), last) + 1
        return [float((slot - last - 1) % span) for slot in slots]

    def chosen(self, ask: Ask, request: Request, pool: Pool, position: int, now: Instant) -> None:
        self._last_slot[pool.model] = pool.slots[position]
