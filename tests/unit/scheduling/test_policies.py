"""Each policy does what its name says."""

import random
from collections import Counter

import pytest

from isochrone.nouns.instant import SECOND
from isochrone.nouns.request import Request
from isochrone.scheduling import policies
from isochrone.scheduling.placing import cheapest, without
from isochrone.scheduling.policies.estimated_time import EstimatedTime
from isochrone.scheduling.price import Ask
from tests.support.rows import make_pool


def request(session: str = "", max_tokens: int | None = None) -> Request:
    return Request(id="r", model="m", path="/v1/completions", session=session, max_tokens=max_tokens)


def picks(name: str, count: int, pool_size: int = 4, sessions: bool = False) -> list[int]:
    pool = make_pool(pool_size, seed=3)
    chance = random.Random(1)
    policy = policies.make(name, chance)
    ask, found = Ask(prompt_tokens=100, output_tokens=10.0), []
    for number in range(count):
        asked = request(f"s{number}" if sessions else "")
        position = cheapest(policy.prices(ask, asked, pool, SECOND), None, chance)
        assert position is not None
        policy.chosen(ask, asked, pool, position, SECOND)
        found.append(position)
    return found


def test_round_robin_takes_turns() -> None:
    assert picks("round-robin", 8) == [0, 1, 2, 3, 0, 1, 2, 3]


def test_random_draws_evenly() -> None:
    counts = Counter(picks("random", 4000))
    assert all(850 < counts[position] < 1150 for position in range(4))


def test_least_request_weighs() -> None:
    pool = make_pool(6, seed=8)
    prices = policies.make("least-request", random.Random(0)).prices(
        Ask(prompt_tokens=1, output_tokens=1.0), request(), pool, 0
    )
    expected = [i.ledger.in_flight / i.weight for i in pool.members]
    assert list(prices) == expected


def test_power_of_two_asks_two_and_takes_the_better() -> None:
    pool = make_pool(8, seed=5)
    chance = random.Random(2)
    policy = policies.make("power-of-two", chance)
    for _ in range(200):
        prices = policy.prices(Ask(prompt_tokens=1, output_tokens=1.0), request(), pool, 0)
        assert sum(price < float("inf") for price in prices) == 2


def test_session_hash_moves_few_sessions_when_an_instance_joins_and_only_its_own_when_it_leaves() -> None:
    before = picks("session-hash", 1000, pool_size=4, sessions=True)
    after = picks("session-hash", 1000, pool_size=5, sessions=True)
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {4}, "sessions move to the newcomer and nowhere else"
    assert len(moved) <= 250
    assert min(Counter(before).values()) > 150


def test_estimated_time_is_the_textbook_formula_to_the_letter() -> None:
    pool = make_pool(5, seed=11)
    for instance in pool.members:
        instance.mean_request_s = 3.0
    ask = Ask(prompt_tokens=1200, output_tokens=77.0)
    prices = EstimatedTime(random.Random(0)).prices(ask, request(max_tokens=300), pool, SECOND)
    for row, price in zip(pool.rows, prices, strict=True):
        prefill_tps = 1 / (row.token_s * row.level_factor)
        decode_tps = 1 / (row.step_s * row.level_factor)
        kv_used = row.kv_usage_ratio or 0.0
        slow_score = max(0.0, row.level_factor - 1)
        expected = (
            row.running * row.mean_request_s
            + 1200 / prefill_tps
            + 300 / decode_tps
            + max(0, kv_used - 0.8) * 100
            + slow_score * 50
        )
        assert price == pytest.approx(expected)


def test_ties_go_to_the_deeper_hit_then_to_chance() -> None:
    chance = random.Random(0)
    assert cheapest([1.0, 1.0, 2.0], [0, 9, 0], chance) == 1
    assert {cheapest([1.0, 1.0, 2.0], None, chance) for _ in range(50)} == {0, 1}
    assert cheapest([float("inf")] * 3, None, chance) is None


def test_barred_slots_are_never_picked() -> None:
    pool = make_pool(3, seed=1)
    assert list(without([1.0, 2.0, 3.0], pool, {pool.slots[0]})) == [float("inf"), 2.0, 3.0]
