"""Who is slow, who only looks so, and when it is over."""

import random
from math import log

import pytest

from isochrone.instances.slowness import (
    PEERS_MIN,
    PROBE_LATE_TOKENS,
    PROBE_TOKENS,
    SETTLED_SAMPLES,
    ClassWatch,
    Slowness,
    forgive,
    judge,
    wants_probe,
)
from isochrone.instances.steptime import PRIOR, Level, StepTimeModel
from isochrone.nouns.instant import SECOND

NOISE = 0.25


def settled(value: float = 0.0) -> Level:
    level = Level(value)
    level.samples = SETTLED_SAMPLES
    return level


def feed(slowness: Slowness, level: Level, excess: float) -> bool:
    """One sample as the cluster takes it in: the judgement sees the whole excess, the level what is left of it."""
    changed = slowness.observe(excess, level)
    level.observe(excess - level.value, 1 / 32)
    return changed


def samples_until_lasting(factor: float, seed: int) -> int:
    chance = random.Random(seed)
    slowness, level = Slowness(), settled()
    for count in range(1, 500):
        feed(slowness, level, log(factor) + chance.gauss(0.0, NOISE))
        if slowness.lasting:
            return count
    return 500


@pytest.mark.parametrize(("factor", "at_most"), [(1.3, 40), (1.5, 20), (2.0, 8), (2.5, 8)])
def test_a_slow_instance_is_found_after_a_few_samples(factor: float, at_most: int) -> None:
    counts = sorted(samples_until_lasting(factor, seed) for seed in range(40))
    assert counts[20] <= at_most, counts
    assert counts[-1] <= 4 * at_most


def test_noise_alone_is_no_slowness() -> None:
    false_alarms = 0
    for seed in range(100):
        chance = random.Random(seed)
        peers = [(Slowness(), settled()) for _ in range(8)]
        for _ in range(200):
            for slowness, level in peers:
                if feed(slowness, level, chance.gauss(0.0, NOISE)):
                    judge(peers)
            false_alarms += sum(slowness.counts for slowness, _ in peers)
    assert false_alarms <= 100 * 200 * 8 * 0.01


def test_a_newcomer_is_not_judged() -> None:
    slowness, level = Slowness(), Level()
    for _ in range(SETTLED_SAMPLES - 1):
        assert not feed(slowness, level, 1.0)
    assert not slowness.lasting


def lasting(value: float) -> tuple[Slowness, Level]:
    slowness, level = Slowness(), settled(value)
    slowness.lasting = abs(value) > 0.2
    return slowness, level


def test_among_four_or_more_a_level_must_be_unusual() -> None:
    spread = [lasting(value) for value in (-0.12, -0.05, 0.0, 0.06, 0.13, 0.25)]
    judge(spread)
    assert not any(slowness.counts for slowness, _ in spread), "0.25 is nothing among peers that differ by 0.1"
    tight = [lasting(value) for value in (-0.01, 0.0, 0.0, 0.01, 0.02, 0.25)]
    assert judge(tight)
    assert [slowness.counts for slowness, _ in tight] == [False] * 5 + [True]


def test_in_a_mixed_class_every_lasting_level_counts() -> None:
    half = [lasting(value) for value in (-0.35, -0.35, -0.34, 0.35, 0.35, 0.36)]
    judge(half)
    assert all(slowness.counts for slowness, _ in half)


def test_with_few_peers_lasting_and_large_will_do() -> None:
    few = [lasting(-0.3), lasting(0.3)]
    assert len(few) < PEERS_MIN
    judge(few)
    assert [slowness.slow(level) for slowness, level in few] == [False, True]


def test_who_has_recovered_counts_no_more() -> None:
    chance = random.Random(5)
    peers = [(Slowness(), settled()) for _ in range(4)]
    slowness, level = peers[0]
    for factor in (2.5, 1.0):
        for _ in range(120):
            for index, (one, its) in enumerate(peers):
                if feed(one, its, log(factor if index == 0 else 1.0) + chance.gauss(0.0, 0.1)):
                    judge(peers)
        assert slowness.counts == (factor > 1.0)
    assert level.factor == pytest.approx(1.0, abs=0.1)


def test_probes_are_small_and_rare() -> None:
    assert not wants_probe(SECOND, 10, 5 * SECOND)
    assert wants_probe(SECOND, PROBE_TOKENS, 6 * SECOND)
    assert not wants_probe(SECOND, PROBE_TOKENS + 1, 6 * SECOND)
    assert wants_probe(SECOND, PROBE_LATE_TOKENS, 11 * SECOND)
    assert not wants_probe(SECOND, PROBE_LATE_TOKENS + 1, 60 * SECOND)


def test_good_probes_halve_the_level_each_minute_and_bad_ones_do_not() -> None:
    level = settled(1.0)
    forgive(0.0, level, 60 * SECOND)
    assert level.value == pytest.approx(0.5)
    forgive(0.05, level, 3600 * SECOND)
    assert level.value == pytest.approx(0.25), "one sample forgives one half-life at most"
    forgive(0.4, level, 60 * SECOND)
    assert level.value == pytest.approx(0.25)


def test_a_restored_level_counts_where_it_is_large() -> None:
    for value, counts in ((0.5, True), (0.1, False), (-0.5, True)):
        slowness = Slowness()
        slowness.believe(settled(value))
        assert slowness.counts == counts
    young = Slowness()
    young.believe(Level(0.5))
    assert not young.counts


def test_a_class_that_moves_is_told_and_becomes_the_new_normal() -> None:
    model, watch = StepTimeModel(PRIOR), ClassWatch()
    step = (1.0, 32.0, 40_000.0, 0.0)
    for second in range(60):
        watch.look(model, step, second * SECOND)
    assert not watch.moved
    assert watch.ratio == pytest.approx(1.0)
    model.scale_by(1.4)
    watch.look(model, step, 61 * SECOND)
    assert watch.moved
    assert watch.ratio == pytest.approx(1.4, rel=0.01)
    for second in range(62, 62 + 1800, 10):
        watch.look(model, step, second * SECOND)
    assert not watch.moved
    assert watch.shift < log(1.1)
