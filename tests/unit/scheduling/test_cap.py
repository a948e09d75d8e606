"""The cap on concurrency from the TPOT target."""

import random

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from isochrone.instances.gaps import SAMPLES_MIN, Gaps
from isochrone.nouns.settings import Settings
from isochrone.scheduling.cap import allows, allows_many
from isochrone.scheduling.price import Ask, Rare, Row
from tests.support.rows import make_pool


def row(batch: int, step_s: float, gaps: Gaps | None = None) -> Row:
    (base,) = make_pool(1, 0).rows
    return msgspec.structs.replace(base, running=batch, rare=Rare(full_step_s=step_s, gaps=gaps))


def with_gaps(rare: Rare, gaps: Gaps | None) -> Rare:
    return msgspec.structs.replace(rare, gaps=gaps)


def measured(gap_s: float, batch: int) -> Gaps:
    gaps = Gaps()
    for _ in range(SAMPLES_MIN):
        gaps.observe(batch, gap_s)
    return gaps


def test_the_model_decides_where_nothing_was_measured() -> None:
    ask = Ask(prompt_tokens=100, output_tokens=10, step_s_max=0.03)
    assert allows(ask, row(20, 0.029))
    assert not allows(ask, row(20, 0.031))


def test_a_model_that_is_too_pessimistic_is_overruled_by_what_was_measured() -> None:
    """It says 60 ms at a batch of 20, where 15 ms were seen: the cap moves up, a bin at a time."""
    ask = Ask(prompt_tokens=100, output_tokens=10, step_s_max=0.03)
    assert allows(ask, row(20, 0.06, measured(0.015, 20)))
    assert not allows(ask, row(30, 0.09, measured(0.015, 20)))
    assert allows(ask, row(30, 0.09, measured(0.020, 30)))
    assert not allows(ask, row(30, 0.09, measured(0.031, 30)))


def test_an_idle_instance_is_always_eligible() -> None:
    ask = Ask(prompt_tokens=100, output_tokens=10, step_s_max=0.001)
    assert allows(ask, row(0, 1.0))


@given(st.integers(0, 10_000), st.integers(1, 12), st.lists(st.sampled_from([0.0, 0.02, 0.03, 0.5]), min_size=1))
def test_many_at_once_are_decided_as_one_by_one(seed: int, count: int, targets: list[float]) -> None:
    chance = random.Random(seed)
    rows = [
        msgspec.structs.replace(
            one, rare=with_gaps(one.rare, chance.choice([None, measured(0.01, 4), measured(0.1, 2)]))
        )
        for one in make_pool(count, seed, Settings(cap_ratio=0.6)).rows
    ]
    tokens = np.array([chance.randrange(1, 50_000) for _ in targets])
    many = allows_many(tokens, np.array(targets), rows)
    for lane, target in enumerate(targets):
        ask = Ask(prompt_tokens=int(tokens[lane]), output_tokens=1, step_s_max=target)
        assert many[lane].tolist() == [target == 0.0 or allows(ask, one) for one in rows]
