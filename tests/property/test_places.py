"""The rows of a large pool as arrays against the rows one by one."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.nouns.instant import SECOND
from isochrone.nouns.settings import Settings
from isochrone.scheduling.opening import is_open, open_places
from isochrone.scheduling.places import FIELDS, Places
from isochrone.scheduling.price import MATRIX_FIELDS, VECTOR_FROM, Ask, forecast, own_work_s
from tests.support.rows import flight, make_pool

SETTINGS = Settings(hold_chunks=2.0, slots_default=8, cap_ratio=0.6)


@settings(max_examples=40)
@given(st.integers(0, 100_000), st.sampled_from([0.0, 0.02, 0.04]), st.booleans(), st.integers(0, 2 * SECOND))
def test_all_at_once_as_one_by_one(seed: int, step_s_max: float, sheddable: bool, later: int) -> None:
    chance = random.Random(seed)
    pool, now = make_pool(VECTOR_FROM, seed, SETTINGS), SECOND + later
    assert pool.places is not None
    tokens = chance.randrange(1, 30_000)
    hits = chance.choice([None, [chance.randrange(tokens) for _ in pool.rows]])
    ask = Ask(
        prompt_tokens=tokens,
        output_tokens=100.0,
        hits=hits,
        sheddable=sheddable,
        ttft_slo_s=2.0,
        first_token_due=now + chance.randrange(3 * SECOND) if sheddable else 0,
        step_s_max=step_s_max,
    )
    one_by_one = [is_open(ask, row, now, SETTINGS, hits[p] if hits else 0) for p, row in enumerate(pool.rows)]
    assert open_places(ask, pool, pool.places, now, SETTINGS).tolist() == one_by_one
    work = [own_work_s(tokens, hits[p] if hits is not None else 0, row) for p, row in enumerate(pool.rows)]
    assert pool.places.least_work_s(tokens, hits) == pytest.approx(min(work))


def test_a_row_that_changes_changes_its_place() -> None:
    pool = make_pool(VECTOR_FROM, 1, SETTINGS)
    instance = pool.members[7]
    instance.ledger.enter(flight(10_000, 9_000, SECOND), SECOND)
    pool.marked.add(instance.slot)
    other = make_pool(VECTOR_FROM, 2, SETTINGS).rows[0]
    assert list(pool.refresh(SECOND, lambda _, at: other)) == [7]
    assert pool.places is not None
    anew = Places(pool.rows)
    np.testing.assert_array_equal(pool.places.matrix, anew.matrix)
    np.testing.assert_array_equal(pool.places.idle, anew.idle)
    np.testing.assert_array_equal(pool.places.room, anew.room)


def test_what_the_price_takes_comes_first() -> None:
    assert FIELDS[: len(MATRIX_FIELDS)] == MATRIX_FIELDS
    pool = make_pool(VECTOR_FROM, 3, SETTINGS)
    assert pool.places is not None
    assert pool.places.priced.shape == (len(MATRIX_FIELDS), VECTOR_FROM)


def test_a_small_pool_keeps_none() -> None:
    assert make_pool(VECTOR_FROM - 1, 4, SETTINGS).places is None


def test_forecasts_are_plain_numbers_wherever_hits_come_from() -> None:
    """Large pools count hits in arrays; what is kept of a decision is written as JSON."""
    pool = make_pool(VECTOR_FROM, 5, SETTINGS)
    ask = Ask(prompt_tokens=2_000, output_tokens=50.0, hits=np.full(VECTOR_FROM, 512))  # type: ignore[arg-type]
    assert {type(value) for value in forecast(ask, pool.rows[3], 3, SECOND)} == {float}
