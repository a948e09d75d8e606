"""Which instance a request would go to now, or that it had better wait: prices, and whether the place is open."""

from collections.abc import Iterable, Sequence

import numpy as np

from isochrone.cluster import large
from isochrone.cluster.world import Flow, ModelPool, World
from isochrone.instances.slowness import wants_probe
from isochrone.kv.hashing import block_end
from isochrone.nouns.instance import State
from isochrone.nouns.instant import Instant
from isochrone.scheduling.binding import second_best
from isochrone.scheduling.opening import is_open, open_places
from isochrone.scheduling.places import LEVEL
from isochrone.scheduling.placing import cheapest, without
from isochrone.scheduling.policies import Priced
from isochrone.scheduling.policies.base import NEVER
from isochrone.scheduling.price import Ask, token_price_s

PROBE_OUTPUT_TOKENS = 16
"""A probe should say enough for its steps to be timed."""


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
        vector: Sequence[int] = np.minimum((ends[depths] * tokens_per_byte).astype(np.int64), most)  # type: ignore[assignment]  # read by index only
        return vector
    few = world.index.hits(request.blocks, pool.slots)
    if not any(few):
        return None
    return [min(most, int(block_end(depth - 1) * tokens_per_byte)) if depth else 0 for depth in few]


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
    other = second_best(ask, pool.rows, prices, position, now, world.settings, places=pool.places)
    return None if other is None else (other, prices)


def choose_beside(world: World, now: Instant, flow: Flow) -> tuple[int, Priced] | None:
    """A second place for a request that has an attempt in flight: open and well; None where there is none."""
    pool, ask, flight = flow.pool, flow.ask, flow.flight
    assert flight is not None
    ask.hits = hits(world, flow, pool)
    prices = without(world.policy.prices(ask, flow.request, pool, now), pool, _barred_now(flow) | {flight.slot})
    position = cheapest(prices, ask.hits if world.policy.ties_by_hit else None, world.chance)
    opened = position is not None and is_open(ask, pool.rows[position], now, world.settings, _hit(ask, position))
    return (position, prices) if position is not None and opened else None


def late_binding(world: World, pool: ModelPool) -> bool:
    """Requests may be held only where it was asked for, the step model is warm, and there is a choice."""
    return world.policy.holds and world.settings.hold and pool.warm and len(pool.members) > 1


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


def barred(flow: Flow) -> frozenset[int]:
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
    closed = barred(flow)
    if flow.ordinal:
        well = {one.slot for one in flow.pool.members if one.life.state is State.READY}
        if well - closed:
            closed |= set(flow.pool.slots) - well
    return closed
