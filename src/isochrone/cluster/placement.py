"""When a request goes: at once, later from its pool's queue, or not at all."""

from isochrone.cluster import large
from isochrone.cluster.choosing import barred, choose, hits, late_binding, refresh
from isochrone.cluster.deadlines import is_too_late, least_work_s, shed_at, too_late
from isochrone.cluster.dispatching import dispatch
from isochrone.cluster.endings import refuse
from isochrone.cluster.world import RETRY_AFTER_S, Flow, ModelPool, World
from isochrone.nouns import errors
from isochrone.nouns.instant import MILLISECOND, Instant, nanoseconds, seconds
from isochrone.scheduling.binding import next_held
from isochrone.scheduling.policies import Priced
from isochrone.scheduling.queue import Choice, Held, order_key

TICK_NS = 20 * MILLISECOND
"""While requests are held: pending prefill runs down between events, so the queue is looked at this often."""
LOST_AHEAD = 1000
"""Added to the priority (-100 to 100) of a request that has lost its instance: it goes ahead of all new work."""


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
        barred=barred(flow),
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
