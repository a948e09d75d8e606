"""Instances that hang: found while attempts run, put out, and what runs on them moved elsewhere.

Every LOOK_NS all instances with attempts are looked at; `instances/silence.py` says what silence means. One is put out
only where another one is well: with nobody to go to, a slow answer is better than none. If the look itself comes late
we have been asleep ourselves, and then nobody's silence says anything.
"""

from isochrone.cluster.placement import pump
from isochrone.cluster.resume import move_from_lost
from isochrone.cluster.world import LOOK_NS, World
from isochrone.instances.silence import is_evidence, patience_s, tells
from isochrone.instances.table import Instance
from isochrone.nouns.instance import State
from isochrone.nouns.instant import SECOND, Instant, seconds

LATE_NS = 2 * LOOK_NS
"""A look that is so much later than it was due."""


def look(world: World, now: Instant) -> None:
    """Woke: who has gone silent?"""
    due = world.silence_due
    if due is None or now < due:
        return
    world.silence_due = now + LOOK_NS if world.flights and world.settings.silence_s is not None else None
    silence_s = world.settings.silence_s
    if silence_s is None:
        return
    if now - due > LATE_NS:
        world.deaf_until = now
    quiet_since = now - int(silence_s * SECOND)
    if world.deaf_until > quiet_since:
        return
    for instance in list(world.table.by_id.values()):
        if instance.ledger.in_flight and instance.heard_at < quiet_since:
            why = _hangs(world, now, instance, silence_s)
            if why:
                put_out(world, now, instance, why)


def put_out(world: World, now: Instant, instance: Instance, why: str) -> None:
    """The instance hangs: it takes nothing more, and what it has goes elsewhere as far as that is possible."""
    if instance.life.hung() is None:
        return
    instance.hangs += 1
    world.regroup(instance)
    move_from_lost(world, now, instance, why)
    if world.held_count:
        for pool in world.pools_of(instance):
            if pool.queue:
                pump(world, now, pool)


def _hangs(world: World, now: Instant, instance: Instance, silence_s: float) -> str:
    """Why it is to be taken for hung; empty where it is not."""
    if instance.life.state not in (State.READY, State.SUSPECT, State.PROBING) or not _has_refuge(world, now, instance):
        return ""
    flights = [*instance.ledger.waiting.values(), *instance.ledger.decoding.values()]
    streams = [flight for flight in flights if world.flights[flight.attempt].request.stream]
    figures = tells(instance.snapshot)
    since = max(instance.heard_at, min(flight.dispatched_at for flight in flights))
    page_ns = (instance.scraped_at or 0) - since - 2 * int(world.settings.scrape_interval_s * SECOND)
    if page_ns <= 0 and streams:
        since = max(instance.heard_at, min(flight.dispatched_at for flight in streams))
    if not is_evidence(figures, page_ns / SECOND, len(streams), len(flights) - len(streams)):
        return ""
    allowed_s = patience_s(
        instance.step_times,
        instance.level.factor,
        max((flight.prompt_tokens for flight in instance.ledger.waiting.values()), default=0),
        len(instance.ledger.decoding) + instance.foreign,
        instance.ledger.context_tokens,
        world.settings.chunk_tokens,
        silence_s,
    )
    silent_s = seconds(now - since)
    if silent_s <= allowed_s:
        return ""
    what = "its figures stand still" if page_ns > 0 else "no stream has a token"
    return f"{instance.id} hangs: for {silent_s:.1f} s {what}; its work explains {allowed_s:.1f} s"


def _has_refuge(world: World, now: Instant, instance: Instance) -> bool:
    """Whether another instance is well that could take over."""
    quiet_since = now - int((world.settings.silence_s or 0.0) * SECOND)
    return any(
        member is not instance
        and member.life.state is State.READY
        and (not member.ledger.in_flight or member.heard_at >= quiet_since)
        for pool in world.pools_of(instance)
        for member in pool.members
    )
