"""Measured gaps by batch, and the floor that they give a cap."""

import random

from isochrone.instances.gaps import EDGES, SAMPLES_MIN, Gaps


def test_nothing_measured_gives_no_floor() -> None:
    assert Gaps().floor(0.05) == 1


def test_the_floor_is_where_the_measured_median_reaches_the_target() -> None:
    chance = random.Random(1)
    gaps = Gaps()
    for _ in range(6000):
        batch = chance.uniform(1, 100)
        gaps.observe(batch, (0.010 + 0.001 * batch) * chance.lognormvariate(0.0, 0.2))
    floor = gaps.floor(0.060)
    assert 40 <= floor <= 60, "10 ms + 1 ms a request reaches 60 ms at 50"
    assert gaps.floor(0.015) < 12
    assert gaps.floor(1.0) == 118, "never reached: one bin more than was seen"


def test_a_few_samples_do_not_speak() -> None:
    gaps = Gaps()
    for _ in range(SAMPLES_MIN - 1):
        gaps.observe(4, 9.0)
    assert gaps.floor(0.05) == 1
    gaps.observe(4, 9.0)
    assert gaps.floor(0.05) == 4


def test_more_is_tried_while_gaps_are_short() -> None:
    gaps, batch = Gaps(), 1
    for _ in range(len(EDGES)):
        for _ in range(SAMPLES_MIN):
            gaps.observe(batch, 0.01)
        batch = gaps.floor(0.05)
    assert batch == EDGES[-1]
