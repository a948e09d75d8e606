"""The written-out recursion against the same thing in numpy."""

import random

import numpy as np
import pytest

from isochrone.instances.leastsquares import FLOOR, FORGETTING, NEWS_MIN, VARIANCE_START, Covariance, learn, start


def matrix(p: Covariance) -> np.ndarray:
    full = np.zeros((4, 4))
    full[np.triu_indices(4)] = p
    return full + np.triu(full, 1).T


def test_it_is_recursive_least_squares() -> None:
    chance = random.Random(1)
    p, values = start(), (1.0, 1.0, 1.0, 1.0)
    full, full_values = matrix(p), np.ones(4)
    for _ in range(60):
        z = tuple(chance.uniform(0.05, 1.0) for _ in range(4))
        weight = chance.choice([1.0, 1.0, 0.2])
        target = 0.9 * z[0] + 2.0 * z[1] + 0.5 * z[2] + 3.0 * z[3] + chance.gauss(0.0, 0.01)
        learnt = learn(p, values, z, target - float(np.dot(values, z)), weight)
        if learnt is None:
            assert np.array(z) @ full @ np.array(z) <= NEWS_MIN
            continue
        p, values = learnt
        column = np.array(z)
        gain = full @ column / (FORGETTING / weight + column @ full @ column)
        full_values = full_values + gain * (target - full_values @ column)
        full = (full - np.outer(gain, full @ column)) / FORGETTING
        assert matrix(p) == pytest.approx(full, rel=1e-6, abs=1e-9)
        assert values == pytest.approx(full_values, rel=1e-6)
    assert values == pytest.approx((0.9, 2.0, 0.5, 3.0), rel=0.1)


def test_a_sample_without_news_changes_nothing() -> None:
    p, values = start(), (1.0, 1.0, 1.0, 1.0)
    taken = 0
    for _ in range(2000):
        learnt = learn(p, values, (1.0, 0.0, 0.0, 0.0), 0.0, 1.0)
        if learnt is not None:
            p, values = learnt
            taken += 1
    assert 100 < taken < 400
    assert learn(p, values, (1.0, 0.0, 0.0, 0.0), 5.0, 1.0) is None


def test_no_value_becomes_less_certain_than_at_the_start() -> None:
    """One direction is measured without end by ever different samples; the others inflate up to the bound."""
    chance = random.Random(2)
    p, values = start(1.0), (1.0, 1.0, 1.0, 1.0)
    for _ in range(20_000):
        learnt = learn(p, values, (chance.choice([0.01, 1.0, 10.0]), chance.choice([0.0, 1.0]), 0.0, 0.0), 0.0, 1.0)
        if learnt is not None:
            p, values = learnt
        assert max(p[0], p[4], p[7], p[9]) <= VARIANCE_START * (1.0 + 1e-9)
    assert np.linalg.eigvalsh(matrix(p)).min() > 0.0


def test_a_value_on_the_floor_drags_along_what_it_is_tied_to() -> None:
    """Their sum is known to be 2; a sample that wants the first at -1 must not move the sum."""
    p, values = start(), (1.0, 1.0, 1.0, 1.0)
    for _ in range(200):
        p, values = learn(p, values, (1.0, 1.0, 0.0, 0.0), 2.0 - values[0] - values[1], 1.0) or (p, values)
    p, values = learn(p, values, (1.0, 0.0, 0.0, 0.0), -1.0 - values[0], 1.0) or (p, values)
    assert values[0] == pytest.approx(FLOOR)
    assert values[0] + values[1] == pytest.approx(2.0, rel=0.01)
