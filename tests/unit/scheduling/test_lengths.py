"""The output-length model against known distributions."""

import json
import math
import random

import numpy as np
import pytest

from isochrone.nouns.instant import SECOND
from isochrone.scheduling.lengths import BINS, EDGES, LONGEST, PRIOR, PRIOR_WEIGHT, RENEW_EVERY, Curve, OutputLengths


def exponential(mean: float, chance: random.Random) -> float:
    return chance.expovariate(1.0 / mean)


def pareto(chance: random.Random) -> float:
    """Share 100/x is longer than x, from 100 on: what is left grows with what there is."""
    return 100.0 * chance.paretovariate(1.0)


def test_the_prior_is_chat_like() -> None:
    lengths = OutputLengths()
    assert 190 < lengths.mean("any", "any") < 230
    assert lengths.quantiles("any", "any", [0.5])[0] == pytest.approx(130, rel=0.05)
    assert lengths.observations("any", "any") == 0


def test_the_mean_is_learnt() -> None:
    lengths, chance = OutputLengths(), random.Random(1)
    for _ in range(1000):
        lengths.observe("m", "r", exponential(600, chance), False, 0)
    assert lengths.mean("m", "r") == pytest.approx(600, rel=0.08)
    assert lengths.observations("m", "r") == 1000


@pytest.mark.parametrize("bound", [1, 3, 10, 100, 400, 5000, 100_000])
def test_max_tokens_caps_the_mean(bound: int) -> None:
    """Mean of min(length, bound) of an exponential is mean * (1 - exp(-bound/mean))."""
    lengths, chance = OutputLengths(), random.Random(2)
    for _ in range(2000):
        lengths.observe("m", "r", exponential(300, chance), False, 0)
    mean = lengths.mean("m", "r", bound)
    assert mean <= bound
    assert mean == pytest.approx(300 * (1 - math.exp(-bound / 300)), rel=0.08)


@pytest.mark.parametrize("cut", [100, 300, 1000])
def test_cut_answers_do_not_make_a_model_look_terse(cut: int) -> None:
    """Half of the clients cut at `cut`. Counting a cut as an end would give a mean of 193 at cut 100."""
    lengths, chance = OutputLengths(), random.Random(3)
    for i in range(4000):
        length = exponential(300, chance)
        if i % 2:
            lengths.observe("m", "r", min(length, cut), length > cut, 0)
        else:
            lengths.observe("m", "r", length, False, 0)
    assert lengths.mean("m", "r") == pytest.approx(300, rel=0.08)
    assert lengths.quantiles("m", "r", [0.5])[0] == pytest.approx(300 * math.log(2), rel=0.1)


def test_beyond_the_cut_of_every_answer_the_parent_speaks() -> None:
    """All are cut at 100: then nothing is known beyond, and the mean up to there is still right."""
    lengths, chance = OutputLengths(), random.Random(4)
    for _ in range(2000):
        length = exponential(300, chance)
        lengths.observe("m", "r", min(length, 100.0), length > 100.0, 0)
    assert lengths.mean("m", "r", 100) == pytest.approx(300 * (1 - math.exp(-1 / 3)), rel=0.05)
    assert lengths.mean("m", "r") > 150


def test_what_is_left_of_an_exponential_stays_the_same() -> None:
    lengths, chance = OutputLengths(), random.Random(5)
    for _ in range(3000):
        lengths.observe("m", "r", exponential(300, chance), False, 0)
    for so_far in (0, 50, 150, 300, 600):
        assert lengths.remaining("m", "r", so_far) == pytest.approx(300, rel=0.2)


def test_with_a_heavy_tail_what_is_left_grows() -> None:
    lengths, chance = OutputLengths(), random.Random(6)
    for _ in range(3000):
        lengths.observe("m", "r", pareto(chance), False, 0)
    left = [lengths.remaining("m", "r", so_far) for so_far in (100, 200, 400, 800, 1600)]
    assert left == sorted(left)
    assert left[-1] > 3 * left[0]
    medians = [lengths.quantiles("m", "r", [0.5], so_far)[0] for so_far in (100, 200, 400, 800)]
    assert medians == pytest.approx([100, 200, 400, 800], rel=0.25)


def test_what_is_left_ends_at_max_tokens() -> None:
    lengths = OutputLengths()
    assert lengths.remaining("m", "r", 100, 100) == 0.0
    assert lengths.remaining("m", "r", 150, 100) == 0.0
    assert 0.0 < lengths.remaining("m", "r", 99, 100) <= 1.0
    assert lengths.quantiles("m", "r", [0.1, 0.9], 150, 100) == [0.0, 0.0]
    assert lengths.quantiles("m", "r", [0.9], 90, 100) == [10.0]


def test_beyond_all_bins_there_is_still_an_answer() -> None:
    lengths = OutputLengths()
    beyond = int(LONGEST) * 3
    lengths.observe("m", "r", beyond, False, 0)
    assert lengths.remaining("m", "r", beyond) == pytest.approx(LONGEST / 4)
    assert lengths.remaining("m", "r", beyond, beyond + 7) == 7.0
    assert lengths.quantiles("m", "r", [0.5], beyond)[0] == pytest.approx(math.log(2) * LONGEST / 4)
    assert lengths.quantiles("m", "r", [0.99])[0] > EDGES[BINS - 5]


def test_routes_of_one_model_are_told_apart() -> None:
    lengths, chance = OutputLengths(), random.Random(7)
    for _ in range(300):
        lengths.observe("m", "chat", exponential(300, chance), False, 0)
        lengths.observe("m", "extraction", chance.choice([6, 7, 8, 9, 10]), False, 0)
    assert lengths.mean("m", "chat") == pytest.approx(300, rel=0.15)
    assert lengths.mean("m", "extraction") == pytest.approx(8, rel=0.5)
    assert lengths.mean("m", "never seen") == pytest.approx(154, rel=0.15)


def test_a_new_route_leans_on_its_model() -> None:
    lengths, chance = OutputLengths(), random.Random(8)
    for _ in range(1000):
        lengths.observe("m", "chat", exponential(1000, chance), False, 0)
    lengths.observe("m", "new", 10, False, 0)
    after_one = lengths.mean("m", "new")
    assert 0.8 * 1000 < after_one < 1000
    for _ in range(int(PRIOR_WEIGHT)):
        lengths.observe("m", "new", 10, False, 0)
    assert 10 < lengths.mean("m", "new") < 0.6 * after_one


def test_old_answers_fade_by_time() -> None:
    lengths = OutputLengths()
    for _ in range(200):
        lengths.observe("m", "r", 1000, False, 0)
    for _ in range(60):
        lengths.observe("m", "r", 50, False, 10 * 3600 * SECOND)
    assert lengths.mean("m", "r") < 120


def test_old_answers_fade_by_number() -> None:
    lengths = OutputLengths()
    for _ in range(5000):
        lengths.observe("m", "r", 1000, False, 0)
    for _ in range(5000):
        lengths.observe("m", "r", 50, False, 0)
    assert lengths.mean("m", "r") < 150


def test_the_curve_is_renewed_every_few_answers() -> None:
    lengths = OutputLengths()
    for _ in range(5000):
        lengths.observe("m", "r", 1000, False, 0)
    before = lengths.mean("m", "r")
    for _ in range(RENEW_EVERY):
        lengths.observe("m", "r", 50, False, 0)
    assert lengths.mean("m", "r") < before - 10


def test_years_without_an_answer_do_no_harm() -> None:
    lengths = OutputLengths()
    for year in range(30):
        lengths.observe("m", "r", 300, False, year * 365 * 24 * 3600 * SECOND)
        assert 100 < lengths.mean("m", "r") < 400


def test_time_that_goes_back_does_no_harm() -> None:
    lengths = OutputLengths()
    lengths.observe("m", "r", 300, False, 10**15)
    lengths.observe("m", "r", 300, False, 0)
    assert 100 < lengths.mean("m", "r") < 400


def test_the_number_of_nodes_is_bounded() -> None:
    lengths = OutputLengths(nodes_max=10)
    for i in range(1000):
        lengths.observe(f"model {i % 3}", f"route {i}", 1000, False, 0)
    learned = lengths.learned()
    assert isinstance(learned["models"], list)
    assert isinstance(learned["routes"], list)
    assert len(learned["models"]) + len(learned["routes"]) == 10
    assert lengths.mean("model 1", "route 999") == pytest.approx(1000, rel=0.25)
    assert lengths.mean("model 999", "route 999") == pytest.approx(1000, rel=0.25)


@pytest.mark.parametrize("tokens", [-1.0, math.nan, math.inf])
def test_absurd_lengths_are_refused(tokens: float) -> None:
    lengths = OutputLengths()
    lengths.observe("m", "r", tokens, False, 0)
    assert lengths.observations("m", "r") == 0


def test_what_was_learnt_comes_back_through_json() -> None:
    lengths, chance = OutputLengths(), random.Random(9)
    for i in range(500):
        lengths.observe("m", "r", exponential(300, chance), i % 3 == 0, i * SECOND)
        lengths.observe("n", "s", exponential(50, chance), False, i * SECOND)
    again = OutputLengths()
    assert again.restore(json.loads(json.dumps(lengths.learned())))
    for model, route in (("m", "r"), ("n", "s"), ("m", "other"), ("other", "other")):
        assert again.mean(model, route) == pytest.approx(lengths.mean(model, route), rel=0.02)
    assert again.observations("m", "r") == 500
    again.observe("m", "r", 100, False, 0)
    assert again.mean("m", "r") == pytest.approx(lengths.mean("m", "r"), rel=0.05)


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"all": 1},
        {"all": {"observations": 1, "ended": [1.0], "cut": [], "cut_share": []}},
        {"all": {"observations": 1, "ended": [-1.0] * 41, "cut": [0.0] * 41, "cut_share": [0.0] * 41}},
        {"all": {"observations": 1, "ended": [1.0] * 41, "cut": [0.0] * 41, "cut_share": [9.0] * 41}},
        {"all": {"observations": "1", "ended": [1.0] * 41, "cut": [0.0] * 41, "cut_share": [0.0] * 41}},
        {"routes": [{"model": "m", "route": "r"}]},
        {"models": [{"model": 3}]},
    ],
)
def test_nonsense_is_not_taken_up(broken: dict[str, object]) -> None:
    lengths = OutputLengths()
    assert not lengths.restore(broken)
    assert lengths.mean("m", "r") == pytest.approx(PRIOR.mean, rel=1e-6)


def test_quantiles_over_everything() -> None:
    lengths, chance = OutputLengths(), random.Random(10)
    for _ in range(1000):
        lengths.observe("m", "r", exponential(300, chance), False, 0)
    qs = (0.1, 0.3, 0.5, 0.7, 0.9)
    left = lengths.remaining_many(np.array([100, 40_000]), np.array(qs))
    assert left[:, 0] == pytest.approx([-300 * math.log(1 - q) for q in qs], rel=0.25)
    curve = lengths._all.curve()
    for column, so_far in enumerate((100, 40_000)):  # one at a time says the same; the tail is drawn in straight lines
        assert left[:, column] == pytest.approx([curve.remaining_quantile(q, so_far, math.inf) for q in qs], rel=0.02)


def test_a_curve_of_one_known_shape() -> None:
    """All answers end in one bin: everything can be counted by hand."""
    b = 10
    curve = Curve([1.0] * (b + 1) + [1e-12] * (BINS - b))
    middle = 0.5 * (EDGES[b] + EDGES[b + 1])
    assert curve.mean == pytest.approx(middle, rel=1e-3)
    assert curve.share_longer(EDGES[b]) == 1.0
    assert curve.share_longer(middle) == pytest.approx(0.5)
    assert curve.remaining_quantile(0.5, 0.0, math.inf) == pytest.approx(middle)
    assert curve.remaining(EDGES[b], math.inf) == pytest.approx(middle - EDGES[b], rel=1e-3)
