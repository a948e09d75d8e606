"""Prompts that fit only an empty instance wait apart from the queue, for one that is emptied for them.

What is large and where there is room says `scheduling/reservation.py`; here is when: whenever the pool's queue is
pumped. All of it acts only while requests may be held at all.
"""

from isochrone.cluster.world import Flow, ModelPool, World
from isochrone.nouns.instant import Instant
from isochrone.nouns.settings import Settings
from isochrone.scheduling.opening import is_open
from isochrone.scheduling.placing import cheapest
from isochrone.scheduling.policies import Priced
from isochrone.scheduling.policies.base import NEVER
from isochrone.scheduling.price import Row
from isochrone.scheduling.queue import Choice, Held
from isochrone.scheduling.reservation import Reservation, Room, nearest_to_room, room


def narrowed(world: World, flow: Flow, prices: Priced) -> Priced | None:
    """The prices of a large prompt with NEVER where it finds no room now; None where it should wait for an instance to
    be emptied. A prompt that seems to fit nowhere at all goes its usual way: we estimate, engines count."""
    pool = flow.pool
    found = _room(world, pool, flow)
    if found.only_empty:
        return None
    if not found.somewhere_now:
        return prices
    return [float(price) if fits else NEVER for price, fits in zip(prices, found.fits_now, strict=True)]


def waits_apart(world: World, flow: Flow) -> bool:
    """Whether a request that is about to be held is one of those."""
    return flow.ask.prompt_tokens >= flow.pool.large_from and _room(world, flow.pool, flow).only_empty


def next_large(world: World, now: Instant, pool: ModelPool) -> Choice | None:
    """The large prompt to send next and where, or None. May reserve an instance. The pool's rows must be fresh."""
    reservation = pool.reservation
    if reservation is not None:
        choice = _reserved(world, now, pool, reservation)
        if choice is not None or pool.reservation is not None:
            return choice
    for held in sorted(pool.apart.values(), key=lambda one: one.key):
        flow = world.flows[held.request]
        found = _room(world, pool, flow)
        if found.only_empty:
            _reserve(world, now, pool, held, found)
            return None
        choice = _best(world, now, pool, held, found)
        if choice is not None:
            return choice
    return None


def forget(world: World, pool: ModelPool, request: str) -> None:
    """The request waits no more; whoever was kept for it is free."""
    pool.apart.pop(request, None)
    if pool.reservation is not None and pool.reservation.request == request:
        _free(world, pool)


def _reserved(world: World, now: Instant, pool: ModelPool, reservation: Reservation) -> Choice | None:
    """The reservation's request, if it can go now. The reservation ends where its instance has left the pool."""
    held = pool.apart[reservation.request]
    if reservation.slot not in pool.slots or reservation.slot in held.barred:
        _free(world, pool)
        return None
    position = pool.slots.index(reservation.slot)
    found = _room(world, pool, world.flows[held.request])
    if found.fits_now[position] or reservation.is_late(now):
        return held, position, _prices(world, now, pool, held)
    return None


def _reserve(world: World, now: Instant, pool: ModelPool, held: Held, found: Room) -> None:
    may = [fits and slot not in held.barred for fits, slot in zip(found.fits_empty, pool.slots, strict=True)]
    position = nearest_to_room(pool.rows, pool.members, may)
    if position is not None:
        instance = pool.members[position]
        instance.reserved_for, instance.special = held.request, True
        pool.reservation = Reservation(held.request, instance.slot, now)
        world.touch(instance)


def _free(world: World, pool: ModelPool) -> None:
    assert pool.reservation is not None
    for instance in pool.known:
        if instance.reserved_for == pool.reservation.request:
            instance.reserved_for = None
            world.touch(instance)
    pool.reservation = None


def _best(world: World, now: Instant, pool: ModelPool, held: Held, found: Room) -> Choice | None:
    """The cheapest open place with room, or any where no place would ever have room."""
    prices = [float(price) for price in _prices(world, now, pool, held)]
    settings, barred = world.settings, held.barred
    anywhere = None if found.somewhere_now else [True] * len(pool.rows)
    takes = [
        price if may and row.slot not in barred and _opens(held, row, now, settings) else NEVER
        for price, may, row in zip(prices, anywhere or found.fits_now, pool.rows, strict=True)
    ]
    position = cheapest(takes, held.ask.hits, world.chance)
    return None if position is None else (held, position, prices)


def _opens(held: Held, row: Row, now: Instant, settings: Settings) -> bool:
    """`since` 0: whether it fits has been looked at already."""
    return is_open(held.ask, row, now, settings, since=0)


def _prices(world: World, now: Instant, pool: ModelPool, held: Held) -> Priced:
    return world.policy.prices(held.ask, world.flows[held.request].request, pool, now)


def _room(world: World, pool: ModelPool, flow: Flow) -> Room:
    return room(flow.ask.prompt_tokens, flow.ask.hits, pool.rows, pool.members, world.settings.kv_hard_ratio)
