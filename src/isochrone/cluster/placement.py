"""Where a request goes: price, hold, dispatch. The one place from which requests leave for instances."""

from collections.abc import Iterable, Sequence

import numpy as np

from isochrone.cluster import large, sharing
from isochrone.cluster.deadlines import is_too_late, least_work_s, limits_for, shed_at, too_late
from isochrone.cluster.endings import refuse
from isochrone.cluster.evidence import evidence, spread
from isochrone.cluster.world import RETRY_AFTER_S, Flow, ModelPool, World
from isochrone.instances.ledger import Flight
from isochrone.instances.slowness import wants_probe
from isochrone.kv.hashing import block_end
from isochrone.nouns import errors
from isochrone.nouns.commands import Dispatch
from isochrone.nouns.decision import Try
from isochrone.nouns.events import attempt_id
from isochrone.nouns.instance import State
from isochrone.nouns.instant import MILLISECOND, SECOND, Instant, nanoseconds, seconds
from isochrone.scheduling.binding import next_held, second_best
from isochrone.scheduling.opening import is_open, open_places
from isochrone.scheduling.places import LEVEL
from isochrone.scheduling.placing import cheapest, without
from isochrone.scheduling.policies import Priced
from isochrone.scheduling.policies.base import NEVER
from isochrone.scheduling.price import Ask, forecast, own_work_s, token_price_s
from isochrone.scheduling.queue import Choice, Held, order_key

TICK_NS = 20 * MILLISECOND
"""While requests are held: pending prefill runs down between events, so the queue is looked at this often."""
LOST_AHEAD = 1000
"""Added to the priority (-100 to 100) of a request that has lost its instance: it goes ahead of all new work."""
PROBE_OUTPUT_TOKENS = 16
"""A probe should say enough for its steps to be timed."""
SPREAD_EVERY = 16
"""One decision in so many has its spread of forecasts measured."""


def place(world: World, now: Instant, flow: Flow) -> bool:
    """Send the request to an instance or let it wait, or refuse what is too late for its client. False where the queue
    is full."""
    pool = flow.pool
    refresh(world, now, pool)
    flow.ask.hits = hits(world, flow, pool)
    if flow.request.limit_s is not None and is_too_late(now, flow):
        refuse(world, now, flow, too_late(flow))
        return True
    full = world.held_count >= world.settings.queue_requests_max and not flow.ordinal
    if not pool.queue or full:  # a full queue holds nobody who could go now, but maybe this one can
        choice = choose(world, now, flow)
        if choice is not None:
            position, prices = choice
            dispatch(world, now, flow, position, prices)
            return True
    if full:
        return False  # those that have lost their instance come in all the same: no more than were in flight there
    _hold(world, now, flow)
    pump(world, now, pool)
    return True


def choose(world: World, now: Instant, flow: Flow) -> tuple[int, Priced] | None:
    """The place for one request among fresh rows, or None to wait."""
    pool, ask = flow.pool, flow.ask
    prices = world.policy.prices(ask, flow.request, pool, now)
    if flow.tried or pool.mixed_contexts:
        prices = without(prices, pool, _barred_now(flow))
    if ask.prompt_tokens >= pool.large_from and late_binding(world, pool):
        with_room = large.narrowed(world, flow, prices)
        if with_room is None:
            return None
        prices = with_room
    if world.any_slow and world.policy.priced_by_queue:
        probe = _probe(world, now, flow, prices)
        if probe is not None:
            return probe, prices
    position = cheapest(prices, ask.hits if world.policy.ties_by_hit else None, world.chance)
    if position is None or not late_binding(world, pool):
        return None if position is None else (position, prices)
    if is_open(ask, pool.rows[position], now, world.settings, _hit(ask, position)):
        return position, prices
    if world.policy.priced_by_queue:
        return _next_best(world, now, flow, position, prices)
    other = second_best(ask, pool.rows, prices, position, now, world.settings)
    return None if other is None else (other, prices)


def choose_beside(world: World, now: Instant, flow: Flow) -> tuple[int, Priced] | None:
    """A second place for a request that has an attempt in flight: open and well; None where there is none."""
    pool, ask, flight = flow.pool, flow.ask, flow.flight
    assert flight is not None
    ask.hits = hits(world, flow, pool)
    prices = without(world.policy.prices(ask, flow.request, pool, now), pool, _barred_now(flow) | {flight.slot})
    position = cheapest(prices, ask.hits if world.policy.ties_by_hit else None, world.chance)
    opened = position is not None and is_open(ask, pool.rows[position], now, world.settings)
    return (position, prices) if position is not None and opened else None


def _probe(world: World, now: Instant, flow: Flow, prices: Priced) -> int | None:
    """A slow instance without traffic that a small request should go to, so that it can show that it has recovered."""
    ask, pool = flow.ask, flow.pool
    if flow.ordinal or ask.output_tokens < PROBE_OUTPUT_TOKENS:
        return None
    idle: Iterable[int] = range(len(pool.rows))
    if pool.places is not None:
        idle = np.flatnonzero(pool.places.idle & (pool.places.matrix[LEVEL] > 1.0)).tolist()
    for position in idle:
        row = pool.rows[position]
        if row.level_factor > 1.0 and row.idle and row.has_room and prices[position] < NEVER:
            uncached = ask.prompt_tokens - (int(ask.hits[position]) if ask.hits is not None else 0)
            if wants_probe(pool.members[position].last_dispatch_at, uncached, now):
                return position
    return None


def late_binding(world: World, pool: ModelPool) -> bool:
    """Requests may be held only where it was asked for, the step model is warm, and there is a choice."""
    return world.policy.holds and world.settings.hold and pool.warm and len(pool.members) > 1


def _next_best(world: World, now: Instant, flow: Flow, best: int, prices: Priced) -> tuple[int, Priced] | None:
    """`HeldQueue.best` for one request and an empty queue, where its cheapest instance is not open."""
    rows, ask, settings = flow.pool.rows, flow.ask, world.settings
    slack_s = settings.hold_slack_sheddable_s if ask.sheddable else settings.hold_slack_s
    takers = _takers(world, now, flow, prices)
    if not takers:
        return None
    found = min(takers, key=prices.__getitem__)
    deeper = ask.hits[best] - ask.hits[found] if ask.hits is not None else 0
    near = prices[found] <= prices[best] + slack_s
    if near or (not ask.sheddable and deeper * token_price_s(rows[found]) <= slack_s):
        return found, prices
    return (found, prices) if any(rows[position].idle for position in takers) else None


def _takers(world: World, now: Instant, flow: Flow, prices: Priced) -> list[int]:
    """The positions that are open to the request."""
    pool, ask, settings = flow.pool, flow.ask, world.settings
    if pool.places is None:
        return [
            p for p, row in enumerate(pool.rows) if prices[p] < NEVER and is_open(ask, row, now, settings, _hit(ask, p))
        ]
    is_taker = open_places(ask, pool, pool.places, now, settings) & (np.asarray(prices) < NEVER)
    takers: list[int] = np.flatnonzero(is_taker).tolist()
    return takers


def _hit(ask: Ask, position: int) -> int:
    return int(ask.hits[position]) if ask.hits is not None else 0


def refresh(world: World, now: Instant, pool: ModelPool) -> None:
    """Derive the rows that events have marked, and re-price their columns of the queue."""
    positions = pool.refresh(now, world.derive)
    queue = pool.queue
    if not queue:
        return
    if queue.is_stale(pool):
        for held in queue.entries.values():
            held.ask.hits = hits(world, world.flows[held.request], pool)
        queue.rebuild(pool)
    elif positions:
        queue.reprice(pool, positions)


def hits(world: World, flow: Flow, pool: ModelPool) -> Sequence[int] | None:
    """Cached prompt tokens of the request by position; None where no member holds any."""
    request = flow.request
    if not request.blocks or not world.looks_at_prefixes:
        return None
    tokens_per_byte = (flow.ask.prompt_tokens - flow.said_tokens) / request.hashed_bytes
    most = flow.ask.prompt_tokens - 1  # the last token is always computed
    if pool.places is not None:
        depths = world.index.hits_vector(request.blocks, len(world.table.by_slot))[pool.places.slots]
        deepest = int(depths.max(initial=0))
        if deepest == 0:
            return None
        ends = np.array([0] + [block_end(k) for k in range(deepest)])
        vector: Sequence[int] = np.minimum((ends[depths] * tokens_per_byte).astype(np.int64), most)  # type: ignore[assignment]
        return vector
    few = world.index.hits(request.blocks, pool.slots)
    if not any(few):
        return None
    return [min(most, int(block_end(depth - 1) * tokens_per_byte)) if depth else 0 for depth in few]


def dispatch(
    world: World, now: Instant, flow: Flow, position: int, prices: Priced, hedge: bool = False
) -> None:  # fmt: skip
    """Bind the request to the instance at this position: ledger, index, record, command. `hedge`: beside an attempt."""
    pool, ask, request = flow.pool, flow.ask, flow.request
    instance, row = pool.members[position], pool.rows[position]
    ledger = instance.ledger
    hit = ask.hits[position] if ask.hits is not None else 0
    ttft_s, e2e_s = forecast(ask, row, position, now)
    flow.ordinal += 1
    world.attempts_given += 1
    flight = Flight(
        attempt=attempt_id(flow.relay, flow.epoch, world.attempts_given),
        request=request.id,
        slot=instance.slot,
        incarnation=instance.incarnation,
        ordinal=flow.ordinal,
        dispatched_at=now,
        prompt_tokens=ask.prompt_tokens,
        uncached_tokens=ask.prompt_tokens - int(hit),
        work_ns=int(own_work_s(ask.prompt_tokens, int(hit), row) * SECOND),
        expected_output=int(ask.output_tokens),
        generates=request.generates,
        tpot_slo_s=flow.slo.tpot_s if flow.slo is not None else None,
        batch_then=row.batch,
        context_then=ledger.context_tokens,
        busy_then=not row.idle,
        slot_bound=not row.has_slot,
    )
    flight.tokens_ahead, flight.pairs_ahead = ledger.ahead(now)
    ledger.enter(flight, now)
    if ledger.in_flight == 1:
        instance.heard_at = now
    if len(pool.members) > 1:
        world.watch_silence(now)
    if flow.counted:
        sharing.bound(flow, flight)
    if flow.ordinal == 1:
        world.budget.dispatched_tokens += ask.prompt_tokens
        if world.settings.hedge_ratio:
            many = request.stream and len(pool.members) > 1
            world.hedges.sent(
                now, flight.attempt, flight.uncached_tokens, ttft_s, world.settings.hedge_ratio, many
            )  # fmt: skip
    if world.prices_slack and flight.tpot_slo_s is not None and instance.slack_at < 0:
        instance.slack_at = 0
    instance.admitted += 1
    instance.last_dispatch_at = now
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
    context = instance.models.get(pool.model) if flow.continues else None
    world.out.append(
        Dispatch(
            request.id,
            flight.attempt,
            instance.id,
            limits_for(world, now, flow),
            flow.ordinal,
            flow.continues,
            context,
            pool.model if flow.decision.fallback_from else "",
            hedge,
        )
    )


def pump(world: World, now: Instant, pool: ModelPool) -> None:
    """Send what can be sent; refuse what has waited too long or can no longer meet its objective."""
    queue = pool.queue
    expire(world, now, pool)
    while queue:
        if not pool.members:  # the last one has just gone on trial
            expire(world, now, pool)
            return
        refresh(world, now, pool)
        if late_binding(world, pool):
            choice = (large.next_large(world, now, pool) if pool.apart else None) or _next_held(world, now, pool)
            if choice is None:
                return
            held, position, prices = choice
            flow = world.flows[held.request]
            flow.ask.hits = queue.hits_of(held)
        else:
            plain = _next_in_order(world, now, pool)
            if plain is None:
                return
            flow, position, prices = plain
        release(world, flow)
        dispatch(world, now, flow, position, prices)


def _next_in_order(world: World, now: Instant, pool: ModelPool) -> tuple[Flow, int, Priced] | None:
    """Where nothing is held for a better place: the first held request that has one at all. Where one finds none, those
    that are barred from the same instances find none either, and the others are not to wait for it."""
    stuck: set[frozenset[int]] = set()
    for held in pool.queue.in_order():
        if held.barred in stuck:
            continue
        flow = world.flows[held.request]
        flow.ask.hits = hits(world, flow, pool)
        choice = choose(world, now, flow)
        if choice is not None:
            return flow, *choice
        stuck.add(held.barred)
    return None


def _next_held(world: World, now: Instant, pool: ModelPool) -> Choice | None:
    """The held request to send next, and where."""
    policy, queue, settings = world.policy, pool.queue, world.settings
    if policy.priced_by_queue:
        return queue.best(pool, now, settings, pool.fairness)
    return next_held(
        queue,
        pool,
        policy,
        lambda held: world.flows[held.request].request,
        now,
        settings,
        world.chance,
        pool.fairness,
    )


def release(world: World, flow: Flow) -> None:
    """Take a held request out of its queue, wherever it goes."""
    if flow.held_since is not None and flow.pool.queue.remove(flow.request.id) is not None:
        flow.held_since = None
        world.held_count -= 1
        if flow.pool.apart:
            large.forget(world, flow.pool, flow.request.id)
        world.series.queued(flow.pool.model, len(flow.pool.queue))


def expire(world: World, now: Instant, pool: ModelPool) -> None:
    """Refuse held requests whose time is up, and all of them where nobody is left to take them."""
    if not pool.members:
        for held in pool.queue.in_order():
            flow = world.flows[held.request]
            release(world, flow)
            refuse(world, now, flow, errors.no_instance(pool.model, RETRY_AFTER_S))
        return
    longest = nanoseconds(world.settings.queue_wait_s_max)
    late = [h for h in pool.queue.entries.values() if now - h.since > longest or (h.shed_at and now > h.shed_at)]
    for held in late:
        flow = world.flows[held.request]
        release(world, flow)
        if flow.request.limit_s is not None and is_too_late(now, flow):
            refuse(world, now, flow, too_late(flow))
        elif now - held.since > longest:
            refuse(world, now, flow, errors.queue_timeout(seconds(now - held.since), RETRY_AFTER_S))
        else:
            assert flow.slo is not None
            assert flow.slo.ttft_s is not None
            refuse(world, now, flow, errors.shed(flow.slo.ttft_s, RETRY_AFTER_S))


def _hold(world: World, now: Instant, flow: Flow) -> None:
    pool, ask = flow.pool, flow.ask
    least_s = least_work_s(flow)
    decision = flow.decision
    priority = flow.request.priority + (LOST_AHEAD if flow.ordinal else 0)
    held = Held(
        request=flow.request.id,
        ask=ask,
        since=now,
        arrived_at=decision.arrived_at,
        key=order_key(decision.arrived_at, priority, least_s if world.orders_by_work else 0.0),
        shed_at=shed_at(flow, least_s),
        barred=_barred(flow),
        first_block=flow.request.blocks[0] if flow.request.blocks else None,
        priority=priority,
        line=pool.fairness.line(flow.request.tenant) if pool.fairness is not None else 0,
        apart=large.waits_apart(world, flow) if late_binding(world, pool) else False,
    )
    pool.queue.add(held, pool)
    if held.apart:
        pool.apart[held.request] = held
    flow.held_since = now
    world.held_count += 1
    world.series.queued(pool.model, len(pool.queue))


def _barred(flow: Flow) -> frozenset[int]:
    """Slots where the request may not go: an attempt has failed there, or its context is too short."""
    pool = flow.pool
    longest = pool.longest
    if longest is None or not pool.mixed_contexts:
        return flow.tried
    tokens = flow.ask.prompt_tokens
    short = {
        slot
        for slot, limit in zip(pool.slots, pool.limits, strict=True)
        if limit is not None and limit < longest and tokens > limit
    }
    return flow.tried | short if short else flow.tried


def _barred_now(flow: Flow) -> frozenset[int]:
    """The same, and once an instance has failed the request, those that are on trial themselves while others are well.
    Not for one that waits: by then it may be otherwise."""
    barred = _barred(flow)
    if flow.ordinal:
        well = {one.slot for one in flow.pool.members if one.life.state is State.READY}
        if well - barred:
            barred |= set(flow.pool.slots) - well
    return barred


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
