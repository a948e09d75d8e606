"""Terms that most rows do without."""

import random

import pytest

from isochrone.instances.table import Instance
from isochrone.nouns.instance import InstanceSpec
from isochrone.nouns.instant import SECOND
from isochrone.nouns.settings import Settings
from isochrone.scheduling.adjust import RAMP_MIN, adjusted, adjusts_all
from isochrone.scheduling.parts import PARTS, effective
from isochrone.scheduling.price import Ask, Row, equal_cost
from isochrone.scheduling.terms import equal_cost_terms
from tests.support.rows import make_pool

ASK = Ask(prompt_tokens=4_000, output_tokens=200.0)


def plain(seed: int = 0) -> tuple[Row, Instance]:
    """A busy row that has nothing special about it, and its instance."""
    for candidate in range(seed, seed + 1000):
        pool = make_pool(1, candidate)
        instance = pool.members[0]
        if instance.ledger.in_flight > 3 and not instance.special and pool.rows[0].kv_price_s == 0:
            instance.spec = InstanceSpec(id="i", url="http://i")
            return pool.rows[0], instance
    raise AssertionError("no such pool")


def price(row: Row) -> float:
    return equal_cost(ASK, [row], SECOND)[0]


def terms(row: Row) -> dict[str, float]:
    return equal_cost_terms(ASK, row, 0, SECOND)


def test_nothing_special_is_left_alone() -> None:
    row, instance = plain()
    assert not adjusts_all(Settings())
    assert adjusted(row, instance, Settings(), SECOND) == row


def test_a_failing_instance_costs_its_own_terms_as_often_as_it_is_tried() -> None:
    row, instance = plain()
    instance.failure_rate.rate, instance.failure_rate.at = 0.5, SECOND
    failing = adjusted(row, instance, Settings(), SECOND)
    own = price(row) - terms(row)["pending_prefill"]
    assert price(failing) - price(row) == pytest.approx(own)
    assert terms(failing)["doing_it_again"] == pytest.approx(own)
    assert instance.special
    off = adjusted(row, instance, Settings(without=frozenset({"error-price"})), SECOND)
    assert price(off) == price(row)
    assert adjusted(row, instance, Settings(), 3600 * SECOND) == row
    assert not instance.special, "what failed an hour ago is forgotten"


def test_money_costs_own_seconds_on_the_card() -> None:
    row, instance = plain()
    instance.spec = InstanceSpec(id="i", url="http://i", cost_per_hour=36.0)
    settings = Settings(money_price_s=50.0)
    dear = adjusted(row, instance, settings, SECOND)
    seconds_on_card = terms(row)["own_prefill"] + ASK.output_tokens * row.factor * row.step_s / (row.batch + 1)
    worth = 50.0 * 36.0 / 3600.0
    assert price(dear) - price(row) == pytest.approx(worth * seconds_on_card)
    assert terms(dear)["money"] == pytest.approx(worth * seconds_on_card)
    assert adjusted(row, instance, Settings(), SECOND) == row, "money plays no part by default"


def test_a_new_instance_ramps_up_and_is_then_like_any_other() -> None:
    row, instance = plain()
    settings = Settings(slow_start_s=30.0)
    instance.starts_at = 100 * SECOND
    shares = [adjusted(row, instance, settings, at * SECOND).chunk_s / row.chunk_s for at in (100, 115, 129)]
    assert shares[0] == pytest.approx(RAMP_MIN)
    assert shares == sorted(shares)
    assert shares[-1] < 1.0
    assert adjusted(row, instance, settings, 130 * SECOND) == row
    assert instance.starts_at is None
    assert not instance.special
    instance.starts_at = 100 * SECOND
    off = Settings(without=frozenset({"slow-start"}))
    assert adjusted(row, instance, off, 100 * SECOND).chunk_s == row.chunk_s


def test_nothing_imposed_leaves_own_terms() -> None:
    row, instance = plain()
    alone = adjusted(row, instance, Settings(without=frozenset({"imposed"})), SECOND)
    left, whole = terms(alone), terms(row)
    for name, value in left.items():
        assert value == pytest.approx(0.0 if name.startswith("imposed") and name != "imposed_on_later" else whole[name])
    assert price(alone) < price(row)


def test_a_kept_instance_has_no_room_for_others() -> None:
    row, instance = plain()
    instance.reserved_for = "somebody"
    assert not adjusted(row, instance, Settings(), SECOND).has_room


@pytest.mark.parametrize("part", sorted(PARTS))
def test_every_part_can_be_left_out_alone(part: str) -> None:
    """Rows stay sound, and settings that a part is governed by are where they do nothing."""
    settings = effective(Settings(without=frozenset({part}), cap_ratio=0.6))
    pool = make_pool(6, random.Random(part).randrange(1000), settings)
    for row in pool.rows:
        assert 0.0 <= equal_cost(ASK, [row], SECOND)[0] < float("inf")
    off = {
        "hold": settings.hold is False,
        "work-price": settings.work_price == settings.work_price_sheddable == 0.0,
        "kv-price": settings.kv_soft_price_s == 0.0,
        "kv-limit": settings.kv_hard_ratio > 1.0,
        "cap": settings.cap_ratio is None,
    }
    assert off.get(part, True)
    assert sum(off.values()) == (part in off), "nothing else is"
