"""What operators may see of the cluster: plain data, made when asked for."""

import msgspec

from isochrone.cluster.evidence import candidates
from isochrone.cluster.world import World
from isochrone.nouns.instant import Instant, seconds

__all__ = ["InstanceView", "QueueView", "candidates", "instances", "queues"]


class InstanceView(msgspec.Struct, frozen=True, kw_only=True):
    """One instance as of now. None: unknown, which is not zero."""

    id: str
    """Its name everywhere; by default `host:port`."""
    url: str
    """Its endpoint."""
    engine: str
    """Whose metrics it speaks: `vllm`, `sglang`, `openai`; `auto` before the first scrape."""
    state: str
    """`joining`, `ready`, `suspect`, `ejected`, `probing`, `draining`."""
    weight: float
    """Share of work relative to its peers; 0 takes nothing new."""
    role: str
    """`mixed`: prefill and decode."""
    device_class: str
    """The class whose step-time model it shares: configured, or found."""
    models: dict[str, int | None]
    """Model name -> longest context in tokens."""
    incarnation: int
    """Restarts of the engine that were noticed."""
    slots: int | None
    """max_num_seqs, configured or inferred."""
    in_flight: int
    """Our attempts on it."""
    waiting: int
    """Of `in_flight`, before their first token."""
    decoding: int
    """Of `in_flight`, past their first token."""
    foreign_running: int
    """Requests on it that are not ours."""
    pending_prefill_s: float
    """Prefill work sent there and not yet done."""
    pending_prefill_tokens: int
    """Uncached prompt tokens of the attempts that wait for their first token."""
    owed_output_tokens: int
    """Output expected of running attempts."""
    context_tokens: int
    """Tokens that a decode step reads for our attempts."""
    kv_tokens: int
    """KV tokens of our attempts."""
    kv_usage_ratio: float | None
    """Share of KV memory in use: the last scrape, carried on with what we sent since."""
    kv_capacity_tokens: int | None
    """Tokens that its KV memory holds."""
    engine_running: int | None
    """Running, by its last scrape."""
    engine_waiting: int | None
    """Waiting, by its last scrape."""
    scrape_age_s: float | None
    """Since that scrape."""
    missing: tuple[str, ...]
    """Metric names that were looked for and not found."""
    level_factor: float
    """How much slower than its class: 1 as its class."""
    slow: bool
    """The level is believed, and counts against it."""
    class_shift_ratio: float
    """Step time of its class over what it was some minutes ago: 1 as ever."""
    failure_ratio: float
    """Share of attempts that failed lately."""
    step_samples: int
    """Samples behind its class's step-time model."""
    step_s: float
    """Learnt: what every step takes, in seconds (`a` in docs/concepts/equal-cost.md)."""
    token_s: float
    """Learnt: more for each token in the step (`b`)."""
    kv_s: float
    """Learnt: more for each token of KV that is read (`k`)."""
    pair_s: float
    """Learnt: more for each pair of tokens that attention compares in a prefill (`q`)."""
    dispatched: int
    """Attempts ever sent there."""
    misses: int
    """Heartbeats missed in a row."""
    failures: int
    """Attempts failed in a row."""
    hangs: int
    """How often it had work and showed no sign of doing any."""
    prefix_bytes: int
    """Prompt text that its prefix cache is taken to hold."""


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """One model's queue as of now."""

    model: str
    """Its name."""
    depth: int
    """Requests held."""
    oldest_s: float
    """How long the oldest of them has waited."""
    members: int
    """Instances that take requests for the model."""
    known: int
    """Instances that serve it, in any state."""
    warm: bool
    """Enough was learnt to price, hold and shed."""
    in_doubt: bool
    """No instance is well: those in doubt stand in."""


def instances(world: World, now: Instant) -> list[InstanceView]:
    """All instances in order of joining."""
    seen = []
    age_max = world.settings.scrape_age_s_max
    for instance in world.table.by_id.values():
        ledger, snapshot = instance.ledger, instance.snapshot
        fresh = snapshot if instance.scrape_is_fresh(now, age_max) else None
        step_s, token_s, kv_s, pair_s = instance.step_times.coefficients
        seen.append(
            InstanceView(
                id=instance.id,
                url=instance.spec.url,
                engine=snapshot.engine if snapshot is not None else instance.spec.engine,
                state=instance.life.state.value,
                weight=instance.weight,
                role=instance.spec.role,
                device_class=instance.class_name,
                models=dict(instance.models),
                incarnation=instance.incarnation,
                slots=instance.slots(world.settings.slots_default),
                in_flight=ledger.in_flight,
                waiting=len(ledger.waiting),
                decoding=len(ledger.decoding),
                foreign_running=instance.foreign,
                pending_prefill_s=ledger.pending_s(now),
                pending_prefill_tokens=ledger.waiting_tokens,
                owed_output_tokens=ledger.owed_tokens,
                context_tokens=ledger.context_tokens,
                kv_tokens=ledger.kv_tokens,
                kv_usage_ratio=instance.kv_usage(now, age_max),
                kv_capacity_tokens=snapshot.kv_capacity_tokens if snapshot is not None else None,
                engine_running=fresh.running if fresh is not None else None,
                engine_waiting=fresh.waiting if fresh is not None else None,
                scrape_age_s=seconds(now - instance.scraped_at) if instance.scraped_at is not None else None,
                missing=snapshot.missing if snapshot is not None else (),
                level_factor=instance.level.factor,
                slow=instance.slowness.slow(instance.level),
                class_shift_ratio=world.table.watch(instance.class_name).ratio,
                failure_ratio=instance.failure_rate.now(now),
                step_samples=instance.step_times.samples,
                step_s=step_s,
                token_s=token_s,
                kv_s=kv_s,
                pair_s=pair_s,
                dispatched=instance.admitted,
                misses=instance.life.misses,
                failures=instance.life.failures,
                hangs=instance.hangs,
                prefix_bytes=world.index.used_bytes(instance.slot),
            )
        )
    return seen


def queues(world: World, now: Instant) -> list[QueueView]:
    """One for each model that is or was served."""
    return [
        QueueView(
            model=pool.model,
            depth=len(pool.queue),
            oldest_s=seconds(now - min((held.since for held in pool.queue.entries.values()), default=now)),
            members=len(pool.members),
            known=len(pool.known),
            warm=pool.warm,
            in_doubt=pool.in_doubt,
        )
        for pool in world.pools.values()
    ]
