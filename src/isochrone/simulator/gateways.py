"""Several gateways in front of the same instances, none of which knows what the others do.

Each is a whole Cluster with its own queue, prefix index and step-time models. A request goes to one of them, drawn at
random as a load balancer without memory would, or by its session. Of the others' load a gateway knows what its scrapes
say: an instance runs more than we sent. Of the others' prompts in an instance's cache it knows nothing.

The driver scrapes an instance `gateways` times as often as one gateway would, and the gateways take turns: each sees
every instance once in an interval, and no two at the same moment. Heartbeats likewise.
"""

import random
from collections.abc import Sequence
from typing import Protocol
from zlib import crc32

from isochrone.cluster.view import InstanceView, QueueView
from isochrone.nouns.commands import Command
from isochrone.nouns.decision import Candidate, Decision
from isochrone.nouns.events import (
    Accepted,
    Arrived,
    Ended,
    Event,
    FirstToken,
    Observed,
    Probed,
    Progress,
    Stalled,
    Woke,
)
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request

GATEWAYS_MAX = 256
"""Gateways in front of one simulated cluster."""
ATTEMPT_BITS = 52
"""`nouns.events.attempt_id`: the relay's number stands above these bits."""
RELAYS = 2
"""Relay numbers of one gateway: attempts of its prefill legs and of all others (`pairs.py`)."""

OF_ATTEMPTS = (FirstToken, Progress, Ended, Accepted, Stalled)


class Door(Protocol):
    """What the driver needs of a Cluster, or of several that look like one."""

    def handle(self, now: Instant, event: Event) -> Sequence[Command]: ...
    def next_deadline(self) -> Instant | None: ...
    def instances(self) -> list[InstanceView]: ...
    def queues(self) -> list[QueueView]: ...
    def candidates(self, decision: Decision) -> list[Candidate]: ...
    def decisions(self, limit: int) -> list[Decision]: ...
    def in_flight(self) -> int: ...


def relay_of(attempt: int) -> int:
    """The number that its Arrived came with."""
    return attempt >> ATTEMPT_BITS


class Gateways:
    """Doors side by side. The n-th one's requests have the relay number n * RELAYS."""

    def __init__(self, doors: Sequence[Door], chance: random.Random, sticky: bool) -> None:
        assert 1 <= len(doors) <= GATEWAYS_MAX
        self.doors = tuple(doors)
        self._chance, self._sticky = chance, sticky
        self._beats: dict[str, int] = {}
        self._scrapes: dict[str, int] = {}
        """Instance -> whose turn it is. No entry: it has just joined, and all look."""

    def handle(self, now: Instant, event: Event) -> Sequence[Command]:
        """Hand the event to the gateway that it is for, or to all."""
        if isinstance(event, Arrived):
            gateway = self._gateway_for(event.request)
            return self.doors[gateway].handle(now, Arrived(event.request, relay=gateway * RELAYS))
        if isinstance(event, Observed):
            return self._in_turn(now, event, self._scrapes)
        if isinstance(event, Probed):
            return self._in_turn(now, event, self._beats)
        if isinstance(event, OF_ATTEMPTS):
            return self.door_of(event.attempt).handle(now, event)
        if isinstance(event, Woke):
            return self._wake(now, event)
        return self._all(now, event)

    def door_of(self, attempt: int) -> Door:
        """The gateway that has sent the attempt."""
        return self.doors[relay_of(attempt) // RELAYS]

    def _gateway_for(self, request: Request) -> int:
        if self._sticky and request.session:
            return crc32(request.session.encode()) % len(self.doors)
        return self._chance.randrange(len(self.doors))

    def _wake(self, now: Instant, event: Woke) -> list[Command]:
        due = [door for door in self.doors if (at := door.next_deadline()) is not None and at <= now]
        return [command for door in due for command in door.handle(now, event)]

    def _all(self, now: Instant, event: Event) -> list[Command]:
        return [command for door in self.doors for command in door.handle(now, event)]

    def _in_turn(self, now: Instant, event: Observed | Probed, turns: dict[str, int]) -> Sequence[Command]:
        turn = turns.get(event.instance)
        turns[event.instance] = 0 if turn is None else (turn + 1) % len(self.doors)
        return self._all(now, event) if turn is None else self.doors[turn].handle(now, event)

    # -- reading ------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> Instant | None:
        """The earliest of all."""
        return min((at for door in self.doors if (at := door.next_deadline()) is not None), default=None)

    def instances(self) -> list[InstanceView]:
        """Every instance as each gateway sees it."""
        return [view for door in self.doors for view in door.instances()]

    def queues(self) -> list[QueueView]:
        """Every queue of every gateway."""
        return [view for door in self.doors for view in door.queues()]

    def candidates(self, decision: Decision) -> list[Candidate]:
        """From the record alone: any gateway can say it."""
        return self.doors[0].candidates(decision)

    def decisions(self, limit: int) -> list[Decision]:
        """The most recent records of all, newest arrival first."""
        found = [decision for door in self.doors for decision in door.decisions(limit)]
        return sorted(found, key=_arrival, reverse=True)[:limit]

    def in_flight(self) -> int:
        """Requests that any of them has dispatched and that are not over."""
        return sum(door.in_flight() for door in self.doors)


def _arrival(decision: Decision) -> Instant:
    return decision.arrived_at
