"""Events of instances: they join, tell about themselves, miss heartbeats, are weighed, leave."""

from isochrone.cluster.hedging import attempt_of
from isochrone.cluster.placement import pump
from isochrone.cluster.resume import move_from_lost
from isochrone.cluster.world import World
from isochrone.instances.failures import FailureRate
from isochrone.instances.lifecycle import Life
from isochrone.instances.table import Instance, card_lengths
from isochrone.nouns.commands import Abort
from isochrone.nouns.events import Configured, Found, ModelsSeen, Observed, Probed, Verdict, Weighed, Withdrawn
from isochrone.nouns.instance import State
from isochrone.nouns.instant import SECOND, Instant, nanoseconds


def found(world: World, now: Instant, event: Found) -> None:
    """A new instance, or a new spec for a known one (which then takes requests again if it was draining)."""
    spec = event.spec
    instance = world.table.by_id.get(spec.id)
    if instance is None:
        instance = world.table.add(spec)
    else:
        instance.spec, instance.weight = spec, spec.weight
        instance.keep_when_drained = False
        instance.life.undrain()
        if spec.models:
            instance.models = dict.fromkeys(spec.models, spec.max_model_len)
    world.place_in_pools(instance)


def withdrawn(world: World, now: Instant, event: Withdrawn) -> None:
    """Take nothing new; finish what runs (or abort it, to be tried elsewhere), then go."""
    instance = world.table.by_id.get(event.instance)
    if instance is None:
        return
    instance.life.drain()
    instance.keep_when_drained = event.keep
    world.moves[instance.id] = now + nanoseconds(world.settings.drain_move_s)
    world.regroup(instance)
    if not event.drain:
        for attempt, flow in world.flights.items():
            if attempt_of(flow, attempt)[1] is instance:
                world.out.append(Abort(attempt, "instance removed"))
    world.retire_if_drained(instance)
    _pump_all(world, now)


def weighed(world: World, now: Instant, event: Weighed) -> None:
    """A new weight; 0 takes nothing new."""
    instance = world.table.by_id.get(event.instance)
    if instance is not None:
        instance.weight = event.weight
        world.regroup(instance)
        _pump_all(world, now)


def models_seen(world: World, now: Instant, event: ModelsSeen) -> None:
    """What the engine serves; configured names keep to what is configured, but take their lengths from here."""
    instance = world.table.by_id.get(event.instance)
    if instance is None:
        return
    seen = card_lengths(event.models)
    configured = instance.spec.models
    if configured:
        seen = {model: seen.get(model, instance.spec.max_model_len) for model in configured}
    if instance.spec.max_model_len is not None:
        seen = dict.fromkeys(seen, instance.spec.max_model_len)
    if seen != instance.models:
        instance.models = seen
        world.table.classify(instance)
        world.place_in_pools(instance)
        _pump_all(world, now)


def observed(world: World, now: Instant, event: Observed) -> None:
    """A scrape: correct what our ledger cannot know. Never overwrites what we sent since."""
    instance = world.table.by_id.get(event.instance)
    if instance is None:
        return
    capacity = instance.snapshot.kv_capacity_tokens if instance.snapshot is not None else None
    heard_at = instance.heard_at
    if instance.observe(event.snapshot, event.taken_at):
        world.index.clear(instance.slot)
        _begin_again(world, now, instance)
    elif instance.life.state is State.EJECTED:
        changed = (instance.life.stirred() if instance.heard_at != heard_at else None) or instance.life.told()
        if changed is not None:
            _state_changed(world, now, instance)
    for policy in world.listeners:
        policy.observed(instance, now)
    if event.snapshot.kv_capacity_tokens != capacity:
        world.table.classify(instance)
        world.set_index_capacity(instance)
        world.regroup_later(instance)
    else:
        world.touch(instance)
    if world.held_count:
        world.settle()
        for pool in world.pools_of(instance):
            if pool.queue:
                pump(world, now, pool)


def probed(world: World, now: Instant, event: Probed) -> None:
    """One heartbeat. Tokens that flow excuse one that comes late (the engine is busy), never one that was refused."""
    instance = world.table.by_id.get(event.instance)
    if instance is None:
        return
    beat = world.settings.heartbeat_interval_s * SECOND
    late = event.verdict is Verdict.TIMEOUT
    alive = late and instance.last_token_at is not None and now - instance.last_token_at <= beat
    changed = instance.life.probed(
        event.verdict is Verdict.OK, world.settings, alive, refused=event.verdict is Verdict.REFUSED
    )
    if changed is not None:
        if changed is State.READY:
            _start_slowly(world, now, instance)
        _state_changed(world, now, instance)


def _start_slowly(world: World, now: Instant, instance: Instance) -> None:
    """An instance that has never had a request and joins others that have had some takes its share step by step."""
    if instance.admitted or not world.attempts_given:
        return
    world.settle()
    if any(member.admitted for pool in world.pools_of(instance) for member in pool.members):
        instance.starts_at, instance.special = now, True


def configured(world: World, now: Instant, event: Configured) -> None:
    """New settings from the next decision on."""
    world.configure(event.settings)
    world.unsettled.update(world.pools)
    world.settle()
    _pump_all(world, now)


def _begin_again(world: World, now: Instant, instance: Instance) -> None:
    """The engine was started anew: what the former process failed is not held against this one."""
    if instance.life.state is not State.DRAINING:
        instance.life = Life()
        instance.life.probed(True, world.settings)
        instance.failure_rate = FailureRate()
        _state_changed(world, now, instance)


def _state_changed(world: World, now: Instant, instance: Instance) -> None:
    if instance.life.state is State.EJECTED:
        world.index.clear(instance.slot)  # whatever it comes back as, its cache is not to be relied on
    world.regroup_later(instance)
    if instance.life.state is State.EJECTED:
        world.settle()
        move_from_lost(world, now, instance, f"{instance.id} is silent")
    _pump_all(world, now)


def _pump_all(world: World, now: Instant) -> None:
    if world.held_count:
        world.settle()
        for pool in list(world.pools.values()):
            if pool.queue:
                pump(world, now, pool)
