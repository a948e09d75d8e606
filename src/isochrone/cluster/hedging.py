"""Hedging: when the first token of a small prompt is late, a second instance is asked as well, and the first of the two
to give a byte is the answer. Off unless `hedge_ratio` is set.

It is for prompts with few uncached tokens only: asking twice costs the prefill twice. Late is what comes after the 95th
percentile of what was forecast (`scheduling/hedges.py`). The budget is a share of all requests, and nobody is asked
while requests are held: when a whole cluster is late, asking it for more would make it later.

While two attempts run, `flow.rival` is the other one. The relay ends the loser as soon as the winner's first byte goes
out; the cluster says so again when it hears of the first token, for drivers that did not.
"""

import heapq

from isochrone.cluster.choosing import choose_beside, refresh
from isochrone.cluster.dispatching import dispatch
from isochrone.cluster.world import Flow, World
from isochrone.instances.ledger import Flight
from isochrone.instances.table import Instance
from isochrone.nouns.commands import Abort
from isochrone.nouns.events import Ended, Outcome
from isochrone.nouns.instant import Instant

CONCLUSIVE = frozenset({Outcome.DONE, Outcome.REJECTED, Outcome.CLIENT_LEFT})
"""Outcomes of one of two attempts that end the request."""


def look(world: World, now: Instant) -> None:
    """Woke: whose first token is late?"""
    hedges = world.hedges
    while hedges.due and hedges.due[0][0] <= now:
        _, attempt = heapq.heappop(hedges.due)
        flow = world.flights.get(attempt)
        if flow is None or flow.rival is not None or flow.flight is None or flow.flight.decoding:
            continue
        if flow.flight.attempt != attempt:
            continue
        hedges.late(now, flow.flight.dispatched_at, flow.decision.forecast_ttft_s)
        if flow.ordinal < world.settings.attempts_max and hedges.saved >= 1.0:
            _ask_another(world, now, flow)


def first_token(world: World, now: Instant, flow: Flow, flight: Flight) -> bool:
    """Of two attempts one has given a token; False where it is not the first of them."""
    if flow.rival is None:
        if world.settings.hedge_ratio and flow.ordinal == 1 and flow.request.stream:
            world.hedges.came(now, flight.dispatched_at, flow.decision.forecast_ttft_s)
        return True
    if flow.won:
        return flight is flow.flight
    if flight is flow.rival:
        _swap(flow)
    flow.won = True
    assert flow.instance is not None
    flow.decision.winner = flow.instance.id
    world.out.append(Abort(flow.rival.attempt, "the other instance was first"))
    return True


def attempt_of(flow: Flow, attempt: int) -> tuple[Flight, Instance]:
    """The attempt of that number, and where it runs."""
    flight, instance = flow.flight, flow.instance
    if flow.rival is not None and flow.rival.attempt == attempt:
        flight, instance = flow.rival, flow.rival_instance
    assert flight is not None
    assert instance is not None
    return flight, instance


def one_ended(world: World, flow: Flow, flight: Flight, event: Ended) -> bool:
    """One of two attempts is over; True where that ends the request."""
    if flight is not flow.rival:
        _swap(flow)
    ends_both = event.outcome in CONCLUSIVE
    answering = flow.rival_instance if ends_both else flow.instance
    flow.rival = flow.rival_instance = None
    flow.won = False
    assert flow.flight is not None
    assert answering is not None
    flow.decision.winner = answering.id
    if not ends_both:
        if event.outcome is not Outcome.ABORTED:
            flow.tried |= {flight.slot}
        return False
    world.out.append(Abort(flow.flight.attempt, "the request is over"))
    return True


def _swap(flow: Flow) -> None:
    flow.flight, flow.rival = flow.rival, flow.flight
    flow.instance, flow.rival_instance = flow.rival_instance, flow.instance


def _ask_another(world: World, now: Instant, flow: Flow) -> None:
    if flow.pool.queue:
        return
    refresh(world, now, flow.pool)
    choice = choose_beside(world, now, flow)
    if choice is None:
        return
    world.hedges.saved -= 1.0
    world.hedges.asked += 1
    flow.rival, flow.rival_instance = flow.flight, flow.instance
    dispatch(world, now, flow, *choice, hedge=True)
