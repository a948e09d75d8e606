"""What a seed varies: arrivals inside a recording's ticks, names of prompts and sessions, ties, what is drawn."""

import pytest

from isochrone.nouns.settings import Settings
from isochrone.simulator.fleet import fleet
from isochrone.simulator.generators import GENERATORS, generate
from isochrone.simulator.plan import Plan
from isochrone.simulator.requests import Objective, Requests
from isochrone.simulator.run import simulate
from isochrone.simulator.shaping import shaped
from isochrone.simulator.workload import Call, Workload
from isochrone.twin.profiles import PROFILES

SECOND = 10**9
SEEDS = range(5)


def test_arrivals_move_inside_their_tick_alone() -> None:
    ticked = Workload("t", [Call(k // 10 * 3 * SECOND, 10, 1) for k in range(200)])
    seen = [[call.at for call in shaped(ticked, seed).calls] for seed in SEEDS]
    assert len(set(map(tuple, seen))) == len(SEEDS)
    for times in seen:
        assert [at // (3 * SECOND) for at in times] == [k // 10 for k in range(200)]


def names(seed: int, call: Call) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    made = Requests(16, seed, Objective(), "nothing", PROFILES["h100-8b"])
    request = made.request("a", call)
    return request.blocks[:4], tuple(made.hashes(call)), request.session


def test_prompts_and_sessions_have_other_names_that_share_what_they_shared() -> None:
    long, short = (Call(0, 16 * count, 1, ids=tuple(range(1, count + 1)), session=3) for count in (100, 60))
    seen = [names(seed, long) for seed in SEEDS]
    for column in zip(*seen, strict=True):
        assert len(set(column)) == len(SEEDS)
    assert seen[0][1] == long.ids, "seed 0 keeps the recorded ones"
    for seed in SEEDS:
        assert names(seed, short)[0] == seen[seed][0]
        assert names(seed, short)[1] == seen[seed][1][:60]
        assert len(set(seen[seed][1])) == 100, "different blocks stay different"


def test_ties_fall_elsewhere() -> None:
    alike = Workload("w", [Call(k * 30 * SECOND, 50, 2) for k in range(20)])
    plan = Plan(Settings(policy="least-request"), fleet([("h100-8b", 4)], {}, {}))
    placed = [tuple(simulate(plan, alike, seed).tally.placed) for seed in SEEDS]
    assert len(set(placed)) == len(SEEDS)


@pytest.mark.parametrize("name", sorted(set(GENERATORS) - {"lengths", "servegen"}))
def test_arrivals_and_answers_are_drawn_anew(name: str) -> None:
    made = [generate(f"generate:{name},rate=20,requests=50,seconds=5", seed, lambda *_: 10.0).calls for seed in SEEDS]
    assert len({tuple(call.at for call in calls) for calls in made}) == len(SEEDS)
    if name != "prefix":  # whose answers are all of one length
        assert len({tuple(call.output_tokens for call in calls) for calls in made}) == len(SEEDS)


def test_the_part_that_a_fraction_of_the_rate_keeps_is_drawn_anew() -> None:
    steady = Workload("w", [Call(k * SECOND, 100, 10) for k in range(100)])
    kept = [tuple(call.at for call in shaped(steady, seed, 0.5).calls) for seed in SEEDS]
    assert len(set(kept)) == len(SEEDS)
