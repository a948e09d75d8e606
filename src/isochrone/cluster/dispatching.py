"""A request is bound to an instance: ledger, prefix index, record, command. The one place from which requests leave."""

from isochrone.cluster import sharing
from isochrone.cluster.choosing import hits
from isochrone.cluster.deadlines import limits_for
from isochrone.cluster.evidence import evidence, spread
from isochrone.cluster.world import Flow, ModelPool, World
from isochrone.instances.ledger import Flight
from isochrone.instances.table import Instance
from isochrone.nouns.commands import Dispatch
from isochrone.nouns.decision import Try
from isochrone.nouns.events import attempt_id
from isochrone.nouns.instant import SECOND, Instant, seconds
from isochrone.scheduling.placing import cheapest
from isochrone.scheduling.policies import Priced
from isochrone.scheduling.price import forecast, own_work_s

SPREAD_EVERY = 16
"""One decision in so many has its spread of forecasts measured."""


def dispatch(
    world: World, now: Instant, flow: Flow, position: int, prices: Priced, hedge: bool = False
) -> None:  # fmt: skip
    """Bind the request to the instance at this position: ledger, index, record, command. `hedge`: beside an attempt."""
    pool, ask, request = flow.pool, flow.ask, flow.request
    instance = pool.members[position]
    ttft_s, e2e_s = forecast(ask, pool.rows[position], position, now)
    flow.ordinal += 1
    world.attempts_given += 1
    flight = _flight(world, now, flow, position)
    _enter(world, now, flow, flight, instance)
    if flow.ordinal == 1:
        world.budget.dispatched_tokens += ask.prompt_tokens
        if world.settings.hedge_ratio:
            many = request.stream and len(pool.members) > 1
            world.hedges.sent(now, flight.attempt, flight.uncached_tokens, ttft_s, world.settings.hedge_ratio, many)
    flow.flight, flow.instance = flight, instance
    world.flights[flight.attempt] = flow
    world.policy.chosen(ask, request, pool, position, now)
    _record(world, now, flow, position, prices, ttft_s, e2e_s)
    ask.hits = None  # one number an instance: the record has its own, and a next attempt counts anew
    if request.blocks:
        world.index.insert(instance.slot, request.blocks)
        if pool.queue:
            _rehit(world, pool, position, request.blocks[0])
    if instance.life.dispatched(flight.attempt) is not None:
        world.regroup(instance)  # on trial, and its one place is taken
    world.touch(instance)
    world.out.append(
        Dispatch(
            request.id,
            flight.attempt,
            instance.id,
            limits_for(world, now, flow),
            flow.ordinal,
            flow.continues,
            instance.models.get(pool.model) if flow.continues else None,
            pool.model if flow.decision.fallback_from else "",
            hedge,
        )
    )


def _flight(world: World, now: Instant, flow: Flow, position: int) -> Flight:
    """The attempt as the ledger will know it: what it puts in, and how things stood when it was sent."""
    ask = flow.ask
    instance, row = flow.pool.members[position], flow.pool.rows[position]
    hit = int(ask.hits[position]) if ask.hits is not None else 0
    flight = Flight(
        attempt=attempt_id(flow.relay, flow.epoch, world.attempts_given),
        request=flow.request.id,
        slot=instance.slot,
        incarnation=instance.incarnation,
        ordinal=flow.ordinal,
        dispatched_at=now,
        prompt_tokens=ask.prompt_tokens,
        uncached_tokens=ask.prompt_tokens - hit,
        work_ns=int(own_work_s(ask.prompt_tokens, hit, row) * SECOND),
        expected_output=int(ask.output_tokens),
        generates=flow.request.generates,
        tpot_slo_s=flow.slo.tpot_s if flow.slo is not None else None,
        batch_then=row.batch,
        context_then=instance.ledger.context_tokens,
        busy_then=not row.idle,
        slot_bound=not row.has_slot,
    )
    flight.tokens_ahead, flight.pairs_ahead = instance.ledger.ahead(now)
    return flight


def _enter(world: World, now: Instant, flow: Flow, flight: Flight, instance: Instance) -> None:
    """The instance has one attempt more; from here on its silence means something."""
    ledger = instance.ledger
    ledger.enter(flight, now)
    if ledger.in_flight == 1:
        instance.heard_at = now
    if len(flow.pool.members) > 1:
        world.watch_silence(now)
    if flow.counted:
        sharing.bound(flow, flight)
    if world.prices_slack and flight.tpot_slo_s is not None and instance.slack_at < 0:
        instance.slack_at = 0
    instance.admitted += 1
    instance.last_dispatch_at = now


def _rehit(world: World, pool: ModelPool, position: int, first_block: int) -> None:
    """An instance has been sent a prompt: held requests that begin alike have a deeper hit there now."""
    changed = {}
    for held in pool.queue.entries.values():
        if held.first_block == first_block:
            found = hits(world, world.flows[held.request], pool)
            if found is not None:
                changed[held.request] = int(found[position])
    if changed:
        pool.queue.rehit(pool, position, changed)


def _record(world: World, now: Instant, flow: Flow, position: int, prices: Priced, ttft_s: float, e2e_s: float) -> None:
    decision, pool, ask = flow.decision, flow.pool, flow.ask
    instance_id = pool.members[position].id
    wait_s = seconds(now - decision.arrived_at) if flow.ordinal == 1 else decision.queue_wait_s
    decision.winner = instance_id
    decision.price_s = float(prices[position])
    decision.forecast_ttft_s = ttft_s
    decision.forecast_e2e_s = e2e_s
    decision.queue_wait_s = wait_s
    assert flow.flight is not None
    decision.tries.append(Try(instance_id, now, attempt=flow.flight.attempt))
    decision.evidence = evidence(world.policy, ask, pool.rows, prices, position, now)
    if world.shadow is not None:
        _ask_shadow(world, now, flow)
    if world.attempts_given % SPREAD_EVERY == 0 and flow.request.generates:
        terms = world.policy.terms(ask, pool.rows[position], position, decision.price_s, now)
        world.series.priced(pool.model, terms, None, spread(ask, pool.rows, now))
    world.series.dispatched(pool.model, instance_id, flow.ordinal, wait_s)


def _ask_shadow(world: World, now: Instant, flow: Flow) -> None:
    """Let the shadow policy decide the same; it is recorded and nothing more."""
    shadow, pool = world.shadow, flow.pool
    assert shadow is not None
    prices = shadow.prices(flow.ask, flow.request, pool, now)
    position = cheapest(prices, flow.ask.hits if shadow.ties_by_hit else None, world.chance)
    flow.decision.shadow_policy = shadow.name
    if position is not None:
        flow.decision.shadow_winner = pool.members[position].id
        shadow.chosen(flow.ask, flow.request, pool, position, now)
