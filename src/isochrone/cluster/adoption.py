"""Attempts that were under way before this cluster began: they enter the ledger as if they had been placed here."""

from isochrone.cluster import sharing
from isochrone.cluster.requests import flow_of, pool_for, record_of
from isochrone.cluster.resume import carry_over
from isochrone.cluster.world import Flow, ModelPool, World
from isochrone.instances.ledger import Flight
from isochrone.instances.table import Instance
from isochrone.nouns.decision import Try
from isochrone.nouns.events import Adopted
from isochrone.nouns.instant import SECOND, Instant
from isochrone.scheduling.price import own_work_s


def adopted(world: World, now: Instant, event: Adopted) -> None:
    """Count the attempt where it runs. One on an instance that is not known is left to its relay, and so is one whose
    request or number is here already."""
    request = event.request
    instance = world.table.by_id.get(event.instance)
    if instance is None or event.attempt in world.flights or request.id in world.flows:
        return
    pool = pool_for(world, request)
    if pool is None:  # its instance has not told its models yet
        pool = world.pools.setdefault(request.model, ModelPool(request.model))
    prompt_tokens = max(1, world.prompt_tokens.estimate(pool.model, request.size))
    decision = record_of(world, event.arrived_at, request, pool.model, prompt_tokens)
    flow = flow_of(world, request, decision, pool, event.relay, event.epoch)
    if event.said_tokens is not None:
        carry_over(flow, event.said_tokens)
    flow.ordinal = event.ordinal
    decision.winner = instance.id
    decision.first_token_at = event.first_token_at
    decision.tries.append(Try(instance.id, event.dispatched_at, attempt=event.attempt))
    _enter(world, now, flow, instance, event)


def _enter(world: World, now: Instant, flow: Flow, instance: Instance, event: Adopted) -> None:
    """The instance's ledger. Nothing is learnt from how long its first token takes: what was ahead of it is unknown."""
    ask, row, ledger = flow.ask, world.derive(instance, now), instance.ledger
    flight = Flight(
        attempt=event.attempt,
        request=flow.request.id,
        slot=instance.slot,
        incarnation=instance.incarnation,
        ordinal=event.ordinal,
        dispatched_at=event.dispatched_at,
        prompt_tokens=ask.prompt_tokens,
        uncached_tokens=ask.prompt_tokens,
        work_ns=int(own_work_s(ask.prompt_tokens, 0, row) * SECOND),
        expected_output=int(ask.output_tokens),
        generates=flow.request.generates,
        tpot_slo_s=flow.slo.tpot_s if flow.slo is not None else None,
        slot_bound=True,
    )
    ledger.enter(flight, now)
    if flow.counted:
        sharing.bound(flow, flight)
    instance.heard_at = max(instance.heard_at, now)  # what came before is not known: its silence begins now
    world.watch_silence(now)
    flow.flight, flow.instance = flight, instance
    world.flights[flight.attempt] = flow
    instance.admitted += 1
    instance.last_dispatch_at = max(instance.last_dispatch_at, event.dispatched_at)
    if flow.request.blocks:
        world.index.insert(instance.slot, flow.request.blocks)
    if event.first_token_at is not None:
        ledger.first_token(flight, now)
        ledger.progress(flight, event.output_tokens)
        ledger.begin_window(flight, now)
    world.touch(instance)
