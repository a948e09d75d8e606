"""Where a request may be sent now."""

import msgspec
import pytest

from isochrone.instances.ledger import Ledger
from isochrone.nouns.instance import Snapshot
from isochrone.nouns.instant import SECOND
from isochrone.nouns.settings import Settings
from isochrone.scheduling.binding import second_best
from isochrone.scheduling.lengths import OutputLengths
from isochrone.scheduling.opening import KV_PATIENCE_NS, is_open
from isochrone.scheduling.price import Ask, Row, derive
from tests.support.rows import flight, make_pool

SETTINGS = Settings(hold_chunks=1e9, hold_chunks_sheddable=1e9, kv_hard_ratio=0.9)
NOW = 100 * SECOND


def busy(usage: float = 0.5, capacity: int = 100_000, output: int = 1_000) -> Row:
    """One instance with one answer of so many tokens under way."""
    pool = make_pool(1, 0, SETTINGS, NOW)
    instance = pool.members[0]
    instance.ledger = Ledger()
    one = flight(1, 2_000, NOW, output)
    instance.ledger.enter(one, NOW)
    instance.ledger.first_token(one, NOW)
    instance.observe(Snapshot(engine="vllm", kv_usage_ratio=usage, kv_capacity_tokens=capacity), NOW)
    return derive(instance, SETTINGS, OutputLengths(), NOW)


def ask(tokens: int, **more: object) -> Ask:
    return Ask(prompt_tokens=tokens, output_tokens=10.0, **more)  # type: ignore[arg-type]


def test_a_prompt_must_find_kv_memory() -> None:
    """90 % of 100,000 tokens less 50,000 in use and 999 that the answer under way is still expected to take."""
    row = busy()
    assert row.kv_spare_tokens == pytest.approx(39_001)
    assert is_open(ask(39_001), row, NOW, SETTINGS)
    assert not is_open(ask(39_002), row, NOW, SETTINGS)
    assert is_open(ask(60_000), row, NOW, SETTINGS, hit=21_000)


def test_unknown_kv_memory_has_room_for_all() -> None:
    assert is_open(ask(10_000_000), busy(capacity=0), NOW, SETTINGS)


def test_what_may_not_be_shed_waits_for_memory_only_so_long() -> None:
    large = ask(50_000)
    assert not is_open(large, busy(), NOW, SETTINGS, since=NOW - KV_PATIENCE_NS + 1)
    assert is_open(large, busy(), NOW, SETTINGS, since=NOW - KV_PATIENCE_NS)
    may_be_shed = ask(50_000, sheddable=True, first_token_due=NOW + 1000 * SECOND)
    assert not is_open(may_be_shed, busy(), NOW, SETTINGS, since=0)


def test_so_does_one_that_looks_for_the_second_best_place() -> None:
    rows, large, prices = [busy(), busy()], ask(50_000), [1.0, 2.0]
    assert second_best(large, rows, prices, 0, NOW, SETTINGS, since=NOW - KV_PATIENCE_NS + 1) is None
    assert second_best(large, rows, prices, 0, NOW, SETTINGS, since=NOW - KV_PATIENCE_NS) == 0


def test_a_first_token_that_would_come_too_late_is_not_worked_for() -> None:
    row = msgspec.structs.replace(busy(), pending_s=1.0, token_s=1e-3, pair_s=0.0, level_factor=2.0)
    row = msgspec.structs.replace(row, step_s=0.0)
    half_a_second = ask(250, sheddable=True, first_token_due=NOW + 3 * SECOND // 2)
    assert is_open(half_a_second, row, NOW, SETTINGS)
    assert not is_open(half_a_second, row, NOW + 1000, SETTINGS)
    assert is_open(half_a_second, row, NOW + 1000, SETTINGS, hit=1)
    assert is_open(half_a_second, msgspec.structs.replace(row, running=0), NOW + 1000, SETTINGS)


def test_engines_allocate_a_prompt_as_its_prefill_goes_on() -> None:
    """A scrape in the middle of a prompt's prefill: what is still to be allocated is not forgotten afterwards."""
    ledger = Ledger()
    ledger.enter(flight(1, 10_000, NOW, work_s=1.0), NOW)
    ledger.enter(flight(2, 5_000, NOW, work_s=1.0), NOW)
    assert ledger.kv_resident(NOW) == 0
    assert ledger.kv_resident(NOW + SECOND // 4) == 2_500
    assert ledger.kv_tokens == 15_000
