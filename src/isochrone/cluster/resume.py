"""Streams that go on elsewhere: what they cost there, and which are moved off an instance that drains or is silent.

The relay holds the tokens and knows whether an answer can be continued (`Ended.resumable`); whether it is, where, and
out of which budget, is decided here and in `attempts.py`.
"""

from collections.abc import Iterator

from isochrone.cluster.world import Flow, World
from isochrone.instances.ledger import Flight
from isochrone.instances.table import Instance
from isochrone.nouns.commands import Abort
from isochrone.nouns.events import Ended
from isochrone.nouns.instance import State
from isochrone.nouns.instant import Instant


def may_continue(world: World, event: Ended) -> bool:
    """The client has a part of the answer, and the rest can come from another instance."""
    return event.delivered and event.resumable and world.settings.resume


def carry_over(flow: Flow, said_tokens: int) -> None:
    """The next attempt's prompt is the request's own and what was generated; that much less is still to come."""
    flow.continues = True
    flow.ask.first_token_due = 0
    flow.said_tokens = said_tokens
    flow.ask.prompt_tokens = flow.decision.prompt_tokens_estimate + said_tokens
    flow.ask.output_tokens = max(1.0, (flow.decision.output_tokens_estimate or 0.0) - said_tokens)


def next_move(world: World) -> Instant | None:
    """When the next draining instance is to be emptied; forgets those that are empty, gone or back."""
    for instance_id in list(world.moves):
        instance = world.table.by_id.get(instance_id)
        if instance is None or instance.life.state is not State.DRAINING or not instance.ledger.in_flight:
            del world.moves[instance_id]
    return min(world.moves.values(), default=None)


def move_due(world: World, now: Instant) -> None:
    """Move what still runs on instances that have drained for long enough."""
    due = [instance_id for instance_id, at in world.moves.items() if at <= now]
    for instance_id in due:
        del world.moves[instance_id]
        for flow, attempt in _movable(world, world.table.by_id.get(instance_id)):
            world.out.append(Abort(attempt, f"{flow.decision.winner} drains", if_movable=True))


def move_from_lost(world: World, now: Instant, instance: Instance, why: str) -> None:
    """Move what runs on an instance that is taken for lost, as far as reserve and budget go. Its streams would
    otherwise wait for `gap_s`."""
    for flow, attempt in _movable(world, instance):
        assert flow.flight is not None
        if not pay_for_lost(world, now, flow, flow.flight, instance):
            return
        world.out.append(Abort(attempt, why, if_movable=True))


def pay_for_lost(world: World, now: Instant, flow: Flow, flight: Flight, instance: Instance) -> bool:
    """Pay for computing again what was lost with its instance: from the reserve, else from the retry budget."""
    capacity = instance.snapshot.kv_capacity_tokens if instance.snapshot is not None else None
    if world.reserve.spend(now, flight.uncached_tokens + flight.output_tokens, capacity):
        return True
    return world.budget.spend(world.settings, now, flow.ask.prompt_tokens)


def _movable(world: World, instance: Instance | None) -> Iterator[tuple[Flow, int]]:
    """Attempts on the instance that another one could take over, oldest first."""
    if instance is None or not world.settings.resume:
        return
    for attempt, flow in list(world.flights.items()):
        others = [slot for slot in flow.pool.slots if slot != instance.slot and slot not in flow.tried]
        if flow.rival is not None:  # it has another attempt already
            continue
        if flow.instance is instance and others and flow.ordinal < world.settings.attempts_max:
            yield flow, attempt
