"""`Cluster`: what a driver holds. One handler for each kind of event, behind a table."""

from collections.abc import Callable, Mapping, Sequence

from isochrone.cluster import adoption, attempts, hedging, membership, requests, silence, view
from isochrone.cluster.placement import TICK_NS, pump
from isochrone.cluster.resume import move_due, next_move
from isochrone.cluster.warm_start import learned, restore
from isochrone.cluster.world import World
from isochrone.nouns import events
from isochrone.nouns.chance import Chance
from isochrone.nouns.commands import Command
from isochrone.nouns.decision import Candidate, Decision
from isochrone.nouns.events import Event
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.nouns.settings import Settings
from isochrone.observe.series import Series

Handler = Callable[[World, Instant, Event], None]


def _woke(world: World, now: Instant, event: events.Woke) -> None:
    if world.moves:
        move_due(world, now)
    silence.look(world, now)
    if world.hedges.due:
        hedging.look(world, now)
    for pool in world.pools.values():
        if pool.queue:
            pump(world, now, pool)


HANDLERS: dict[type, Callable[..., None]] = {
    events.Arrived: requests.arrived,
    events.Adopted: adoption.adopted,
    events.ClientLeft: requests.client_left,
    events.Accepted: attempts.accepted,
    events.FirstToken: attempts.first_token,
    events.Progress: attempts.progress,
    events.Stalled: attempts.stalled,
    events.Ended: attempts.ended,
    events.Observed: membership.observed,
    events.ModelsSeen: membership.models_seen,
    events.Probed: membership.probed,
    events.Found: membership.found,
    events.Withdrawn: membership.withdrawn,
    events.Weighed: membership.weighed,
    events.Configured: membership.configured,
    events.Woke: _woke,
}

OF_INSTANCES = frozenset({events.Observed, events.ModelsSeen, events.Probed, events.Found})
"""Their handlers settle the pools themselves where they need it."""


class Cluster:
    """The core behind one door. The same events give the same commands; time never goes back."""

    def __init__(self, settings: Settings, chance: Chance) -> None:
        self._world = World(settings, chance)
        self._now: Instant = 0

    def handle(self, now: Instant, event: Event) -> Sequence[Command]:
        """Take one event in; the driver carries out the returned commands in order.

        A `now` before an earlier one counts as that one: clocks of drivers may be read out of order, the core's is not.
        """
        if now < self._now:
            now = self._now
        self._now = now
        world = self._world
        out: list[Command] = []
        world.out = out
        if world.unsettled and type(event) not in OF_INSTANCES:
            world.settle()
        HANDLERS[type(event)](world, now, event)
        while world.fallen:
            requests.begin_again(world, now, world.fallen.pop(0))
        return out

    def next_deadline(self) -> Instant | None:
        """When to send Woke, None while nothing waits. O(1), but for a look at each instance that drains."""
        world = self._world
        if world.held_count:
            return self._now + TICK_NS
        due = next_move(world) if world.moves else None
        if world.silence_due is not None and world.flights and (due is None or world.silence_due < due):
            due = world.silence_due
        if world.hedges.due and world.flights and (due is None or world.hedges.due[0][0] < due):
            due = world.hedges.due[0][0]
        return due

    # -- reading, for admin and metrics -------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        return self._world.settings

    @property
    def series(self) -> Series:
        return self._world.series

    def instances(self) -> list[view.InstanceView]:
        """Every instance, as of the last event."""
        return view.instances(self._world, self._now)

    def queues(self) -> list[view.QueueView]:
        """Every model's queue, as of the last event."""
        return view.queues(self._settled(), self._now)

    def models(self) -> dict[str, int | None]:
        """Model name -> longest context of any instance that serves it (None: unknown)."""
        return {model: pool.longest for model, pool in sorted(self._settled().pools.items()) if pool.known}

    def estimate(self, request: Request) -> tuple[int, int]:
        """Prompt tokens and output tokens that the request may come to: what a quota sets aside for it."""
        return requests.estimate(self._world, request)

    def can_serve(self) -> bool:
        """At least one instance takes requests."""
        return any(pool.members for pool in self._settled().pools.values())

    def decision(self, request: str) -> Decision | None:
        """The record of a recent request, running or over."""
        return self._world.decisions.get(request)

    def decisions(self, limit: int) -> list[Decision]:
        """The most recent records, newest first."""
        return list(self._world.decisions.values())[: -limit - 1 : -1]

    def candidates(self, decision: Decision) -> list[Candidate]:
        """The candidates of a decision with their price terms in seconds, cheapest first."""
        return view.candidates(decision)

    def in_flight(self) -> int:
        """Requests that have been dispatched and are not over."""
        return len(self._world.flights)

    def learned(self) -> dict[str, object]:
        """Everything learnt, as plain JSON values, for a warm start."""
        return learned(self._world)

    def restore(self, values: Mapping[str, object]) -> None:
        """Take up what `learned` gave; parts that make no sense are left out."""
        restore(self._world, values)

    def _settled(self) -> World:
        """Its pools' members are those of now. Rows are left as they are, so that reading changes no decision."""
        self._world.settle()
        return self._world
