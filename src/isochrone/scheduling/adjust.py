"""What few rows have: terms of the price that are zero for most instances, and parts that were left out.

`price.derive` makes the row that nearly every instance has. Where an instance is marked `special` (it has failed
lately, has just joined, or is kept for somebody), or where settings ask something of every row, the row is adjusted
here; all others pay one look for it.

    error       own terms times the expected number of tries, 1 / (1 - share of failed attempts)
    money       own seconds on the card (w, and a decode step's share o*step/(B + 1)) times what a second of it is worth
    slow start  allowed pending prefill times the share of the ramp that has passed
"""

import msgspec

from isochrone.instances.table import Instance
from isochrone.nouns.instant import Instant, seconds
from isochrone.nouns.settings import Settings
from isochrone.scheduling.price import IMPOSED_PLAIN, IMPOSED_SHEDDABLE, Row

RAMP_MIN = 0.25
"""Share of the allowed pending prefill that a new instance begins with: one chunk of four."""
SECONDS_PER_HOUR = 3600.0


def adjusts_all(settings: Settings) -> bool:
    """Whether every row may need adjusting."""
    return bool(settings.without or settings.money_price_s or settings.cap_ratio is not None)


def adjusted(row: Row, instance: Instance, settings: Settings, now: Instant) -> Row:
    """The row with what is special about its instance; takes the mark off an instance that is so no more."""
    without = settings.without
    if "slowness" in without and row.level_factor != 1.0:
        row = _at_level_one(row)
    if "imposed" in without:
        row = _nothing_imposed(row)
    if instance.failure_rate.rate and "error-price" not in without:
        tries = instance.failure_rate.tries(now)
        if tries == 1.0:
            instance.failure_rate.rate = 0.0  # long ago
        rare = msgspec.structs.replace(row.rare, tries=tries)
        row = msgspec.structs.replace(row, factor=row.factor * tries, rare=rare)
    if settings.money_price_s and instance.spec.cost_per_hour:
        row = _with_money(row, settings.money_price_s * instance.spec.cost_per_hour / SECONDS_PER_HOUR)
    if instance.starts_at is not None and "slow-start" not in without:
        row = msgspec.structs.replace(row, chunk_s=row.chunk_s * ramp(instance, settings, now))
    if settings.cap_ratio is not None:
        row = _with_cap(row, instance)
    if instance.reserved_for is not None:
        row = msgspec.structs.replace(row, has_slot=False, has_room=False)
    instance.special = bool(
        instance.failure_rate.rate or instance.starts_at is not None or instance.reserved_for is not None
    )
    return row


def ramp(instance: Instance, settings: Settings, now: Instant) -> float:
    """How much of the usual pending prefill a new instance may be given; over when it reaches 1."""
    assert instance.starts_at is not None
    if settings.slow_start_s <= 0.0:
        instance.starts_at = None
        return 1.0
    share = seconds(now - instance.starts_at) / settings.slow_start_s
    if share >= 1.0:
        instance.starts_at = None
        return 1.0
    return RAMP_MIN + (1.0 - RAMP_MIN) * share


def _with_cap(row: Row, instance: Instance) -> Row:
    """What a cap on concurrency asks for. Attempts that wait will decode too, so they count."""
    _, token_s, kv_s, _ = instance.step_times.coefficients
    full_s = row.step_s + row.waiting * token_s + kv_s * instance.ledger.waiting_tokens
    level = row.level_factor
    rare = msgspec.structs.replace(row.rare, full_step_s=full_s * level, kv_s=kv_s * level, gaps=instance.gaps)
    return msgspec.structs.replace(row, rare=rare)


def _with_money(row: Row, worth: float) -> Row:
    """`worth`: seconds that one second of the card is worth in money."""
    return msgspec.structs.replace(
        row,
        rare=msgspec.structs.replace(row.rare, money=worth),
        plain=row.plain + worth,
        sheddable=row.sheddable + worth,
        crowd_s=row.crowd_s + worth * row.step_s / (row.batch + 1),
    )


def _nothing_imposed(row: Row) -> Row:
    """Only own terms, and the price of work."""
    return msgspec.structs.replace(
        row,
        rare=msgspec.structs.replace(row.rare, imposes=False),
        plain=row.plain - row.waiting - IMPOSED_PLAIN * row.batch,
        sheddable=row.sheddable - row.waiting - IMPOSED_SHEDDABLE * row.batch,
        slack_per_s=0.0,
        crowd_s=row.gap_s,
        crowd_kv_s=0.0,
    )


def _at_level_one(row: Row) -> Row:
    return msgspec.structs.replace(
        row, factor=row.share, level_factor=1.0, chunk_s=row.chunk_s / row.level_factor
    )  # fmt: skip
