"""Instances and pools for tests of pricing, made through the same table that the cluster uses."""

import random

from isochrone.instances.ledger import Flight
from isochrone.instances.table import Instance, InstanceTable
from isochrone.nouns.instance import InstanceSpec, Snapshot
from isochrone.nouns.instant import SECOND, Instant
from isochrone.nouns.settings import Settings
from isochrone.scheduling.adjust import adjusted, adjusts_all
from isochrone.scheduling.lengths import OutputLengths
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Row, derive

MODEL = "m"


def flight(attempt: int, tokens: int, now: Instant, output: int = 100, work_s: float = 0.0, **more: object) -> Flight:
    """An attempt of so many uncached prompt tokens."""
    return Flight(
        attempt=attempt,
        request=f"r{attempt}",
        slot=0,
        incarnation=0,
        ordinal=1,
        dispatched_at=now,
        prompt_tokens=tokens,
        uncached_tokens=tokens,
        work_ns=int((work_s or tokens * 1e-4) * SECOND),
        expected_output=output,
        **more,  # type: ignore[arg-type]
    )


def make_pool(
    count: int, seed: int, settings: Settings | None = None, now: Instant = SECOND, warm: bool = True
) -> Pool:
    """A pool of ready instances with drawn load: waiting and decoding attempts, levels, weights, KV use."""
    settings = settings or Settings()
    chance = random.Random(seed)
    table, pool = InstanceTable(), Pool(MODEL)
    number = 0
    for index in range(count):
        spec = InstanceSpec(
            id=f"i{index}",
            url="http://x",
            weight=chance.choice([1.0, 1.0, 0.5, 2.0]),
            cost_per_hour=chance.choice([None, 2.0, 10.0]),
        )
        instance = table.add(spec)
        instance.models = {MODEL: 32_768}
        make_ready(instance, settings)
        instance.level.observe(chance.uniform(-0.3, 0.8), 1.0)
        instance.slowness.counts = chance.random() < 0.5
        for _ in range(chance.randrange(4)):
            number += 1
            instance.ledger.enter(flight(number, chance.randrange(1, 20_000), now), now)
        for _ in range(chance.randrange(6)):
            number += 1
            one = flight(number, chance.randrange(1, 5_000), now)
            instance.ledger.enter(one, now)
            instance.ledger.first_token(one, now)
        if chance.random() < 0.5:
            usage = chance.choice([0.2, 0.96, 0.99])
            instance.observe(Snapshot(engine="vllm", kv_usage_ratio=usage, kv_capacity_tokens=100_000), now)
        if chance.random() < 0.3:
            instance.failure_rate.observe(True, now)
            instance.special = True
        if chance.random() < 0.2:
            instance.starts_at, instance.special = now - 10 * SECOND, True
        pool.known.append(instance)
    lengths = OutputLengths()

    def row(instance: Instance, at: Instant) -> Row:
        plain = derive(instance, settings, lengths, at)
        return adjusted(plain, instance, settings, at) if instance.special or adjusts_all(settings) else plain

    pool.regroup(settings.samples_warm)
    pool.refresh(now, row)
    pool.warm = warm
    return pool


def make_ready(instance: Instance, settings: Settings) -> None:
    instance.life.probed(True, settings)
    assert instance.life.placeable


__all__ = ["MODEL", "flight", "make_pool", "make_ready"]
