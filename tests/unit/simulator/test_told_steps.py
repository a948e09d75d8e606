"""Step times that are told instead of learnt."""

import pytest

from isochrone.cluster import Cluster
from isochrone.nouns.settings import Settings
from isochrone.simulator.fleet import Fleet, Member, fleet
from isochrone.simulator.plan import Plan
from isochrone.simulator.run import Simulation
from isochrone.simulator.told_steps import ToldSteps, linear
from isochrone.simulator.workload import Call, Workload
from isochrone.twin.profiles import PROFILES

BIG = "h100-70b-tp4"
WORKLOAD = Workload("calls", [Call(number * 100_000_000, 2_000, 40) for number in range(200)])


def steps_known(plan: Plan) -> list[float]:
    """What the cluster takes each instance's constant part of a step to be after a run, in seconds."""
    run = Simulation(plan, WORKLOAD)
    run.run()
    assert isinstance(run.cluster, Cluster)
    instances = run.cluster._world.table.by_id.values()
    return [one.step_times.coefficients.step_s * one.level.factor for one in instances]


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_the_line_is_near_the_steps_that_engines_take(name: str) -> None:
    step = PROFILES[name].step
    line = linear(step)
    for batch, prefill in ((1, 0), (32, 0), (64, 512), (32, 2_016)):
        tokens, read, pairs = batch + prefill, batch * 1_000, prefill * 1_000.0
        told = line.step_s + line.token_s * tokens + line.kv_s * read + line.pair_s * pairs
        assert told == pytest.approx(step.seconds(tokens, read, pairs), rel=0.2)


def test_what_is_told_stays() -> None:
    without = Settings(without=frozenset({"steps"}))
    true_s = linear(PROFILES[BIG].step).step_s
    plan = Plan(without, fleet([(BIG, 2)], {1: 3.0}, {}), told_steps=ToldSteps(1.5))
    assert steps_known(plan) == pytest.approx([1.5 * true_s, 4.5 * true_s]), "a slow instance's pace is told as well"


def test_each_instance_is_off_by_a_factor_of_its_own_and_a_seed_repeats_it() -> None:
    plan = Plan(Settings(without=frozenset({"steps"})), fleet([(BIG, 3)], {}, {}), told_steps=ToldSteps(1.0, 0.3))
    known = steps_known(plan)
    assert len(set(known)) == 3
    assert steps_known(plan) == known


def test_with_the_part_a_wrong_start_is_unlearnt() -> None:
    profile = PROFILES[BIG]
    (known,) = steps_known(Plan(Settings(), Fleet((Member("one", profile),)), told_steps=ToldSteps(1.5)))
    assert known < 1.3 * linear(profile.step).step_s
