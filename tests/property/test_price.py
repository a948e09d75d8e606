"""The price: loop and matrix agree, terms sum to it, and it moves the way that it should."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.nouns.instant import SECOND
from isochrone.nouns.request import Request
from isochrone.nouns.settings import Settings
from isochrone.scheduling import policies, price
from isochrone.scheduling.policies.equal_cost import EqualCost
from isochrone.scheduling.price import MATRIX_FIELDS, Ask, column
from tests.support.rows import make_pool

asks = st.builds(
    Ask,
    prompt_tokens=st.integers(1, 100_000),
    output_tokens=st.floats(0, 4000),
    sheddable=st.booleans(),
    ttft_slo_s=st.floats(0, 10),
)


def with_hits(ask: Ask, count: int, seed: int) -> Ask:
    chance = random.Random(seed)
    if chance.random() < 0.3:
        return ask
    ask.hits = [chance.choice([0, 0, chance.randrange(ask.prompt_tokens)]) for _ in range(count)]
    return ask


@given(asks, st.integers(1, 80), st.integers(0, 10_000), st.integers(0, 3 * SECOND))
def test_loop_and_matrix_agree(ask: Ask, count: int, seed: int, later: int) -> None:
    pool = make_pool(count, seed)
    ask = with_hits(ask, count, seed)
    now = SECOND + later
    assert len(column(pool.rows[0])) == len(MATRIX_FIELDS)
    matrix = np.array([column(row) for row in pool.rows], dtype=np.float64).T
    for loop, vector in ((price.equal_cost, price.equal_cost_matrix), (price.cold, price.cold_matrix)):
        few, many = loop(ask, pool.rows, now), vector(ask, matrix, now)
        np.testing.assert_allclose(few, many, rtol=1e-9, atol=1e-9)


PARTS_OF_THE_PRICE = [frozenset(), frozenset({"imposed"}), frozenset({"slowness", "error-price"})]


@given(asks, st.integers(1, 9), st.integers(0, 10_000), st.integers(0, 3 * SECOND), st.sampled_from(PARTS_OF_THE_PRICE))
@pytest.mark.parametrize("warm", [True, False])
def test_terms_sum_to_the_price(
    warm: bool, ask: Ask, count: int, seed: int, later: int, without: frozenset[str]
) -> None:
    pool = make_pool(
        count, seed, Settings(without=without, money_price_s=random.Random(seed).choice([0, 60.0])), warm=warm
    )
    ask, now = with_hits(ask, count, seed), SECOND + later
    policy = EqualCost(random.Random(0))
    prices = policy.prices(ask, _request(), pool, now)
    for position, (row, cost) in enumerate(zip(pool.rows, prices, strict=True)):
        terms = policy.terms(ask, row, position, cost, now)
        assert sum(terms.values()) == pytest.approx(cost, rel=1e-6, abs=1e-9)
        assert min(terms.values()) >= -1e-9 * max(1.0, cost)


@given(asks, st.integers(1, 9), st.integers(0, 10_000))
def test_price_never_rises_with_time_or_with_a_deeper_hit(ask: Ask, count: int, seed: int) -> None:
    pool = make_pool(count, seed)
    now = price.equal_cost(ask, pool.rows, SECOND)
    later = price.equal_cost(ask, pool.rows, 3 * SECOND)
    assert all(b <= a + 1e-9 for a, b in zip(now, later, strict=True))
    ask.hits = [ask.prompt_tokens // 2] * count
    cached = price.equal_cost(ask, pool.rows, SECOND)
    assert all(b <= a + 1e-9 for a, b in zip(now, cached, strict=True))


@given(asks, st.integers(1, 9), st.integers(0, 10_000))
def test_forecast_orders_first_and_last_token(ask: Ask, count: int, seed: int) -> None:
    pool = make_pool(count, seed)
    for position, row in enumerate(pool.rows):
        first_s, last_s = price.forecast(ask, row, position, SECOND)
        assert 0 < first_s <= last_s


@given(asks, st.integers(1, 9), st.integers(0, 10_000))
@pytest.mark.parametrize("name", policies.names())
def test_every_policy_keeps_the_contract(name: str, ask: Ask, count: int, seed: int) -> None:
    """One number a row, the same again when asked again with the same chance, and no change of what it was given."""
    pool = make_pool(count, seed)
    ask = with_hits(ask, count, seed)
    rows_before = list(pool.rows)
    first = policies.make(name, random.Random(7)).prices(ask, _request(), pool, SECOND)
    again = policies.make(name, random.Random(7)).prices(ask, _request(), pool, SECOND)
    assert len(first) == count
    assert list(first) == list(again)
    assert pool.rows == rows_before
    assert all(cost == cost for cost in first), "NaN is no price"
    assert name.startswith("estimated-time") or min(first) < float("inf")


def _request() -> Request:
    return Request(id="r", model="m", path="/v1/chat/completions", session="s", max_tokens=100)
