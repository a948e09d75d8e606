"""What the loops that ask instances (heartbeats, models, metrics) need of the gateway."""

from collections.abc import Mapping
from typing import Protocol

from isochrone.nouns.events import Event

Answer = tuple[int, Mapping[str, str], bytes]
"""Status, headers by lower-case name, body."""


class Asker(Protocol):
    """`isochrone.gateway.app.Gateway`, as far as it is used here."""

    def submit(self, event: Event) -> None:
        """Hand an event to the cluster."""

    async def http_get(self, instance: str, path: str, timeout_s: float) -> Answer:
        """GET from an instance, over a connection of its own. TimeoutError, or another OSError, where that fails."""
        ...


class Chance(Protocol):
    """Jitter: `random.Random`."""

    def random(self) -> float: ...


ABSENT = (404, 405, 501)
"""Statuses by which an engine says that it has no such path."""


def jittered(interval_s: float, chance: Chance) -> float:
    """The interval, a tenth more or less: the instances of a cluster are not asked all at once."""
    return interval_s * (0.9 + 0.2 * chance.random())
