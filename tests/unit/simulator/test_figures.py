"""Figures, intervals, plots."""

import xml.etree.ElementTree as ElementTree

import pytest

from isochrone.nouns.decision import Decision, Try
from isochrone.simulator import plots
from isochrone.simulator.figures import MEANINGS, Columns, cdf, figures
from isochrone.simulator.plan import Run
from isochrone.simulator.requests import Objective
from isochrone.simulator.results import compared, document, half_width, leader, student_t
from isochrone.simulator.sweep import Result
from isochrone.simulator.tally import Tally
from isochrone.simulator.unloaded import carries, first_token_s, whole_s
from isochrone.simulator.workload import Call
from isochrone.twin.engine import Engine
from isochrone.twin.profiles import PROFILES, Profile
from isochrone.twin.schedule import Limits
from isochrone.twin.sequence import TwinRequest

SECOND = 10**9
H100 = PROFILES["h100-8b"]


def decision(number: int, outcome: str, reason: str = "") -> Decision:
    return Decision(
        request=str(number), model="m", path="/", tenant="", route="", stream=True, policy="p", arrived_at=0,
        prompt_tokens_estimate=1, outcome=outcome, reason=reason, forecast_e2e_s=1.0, tries=[Try("i", 0)],
    )  # fmt: skip


def run_of(rows: list[tuple[int, float, float, bool]]) -> tuple[Run, list[Call]]:
    """(prompt, ttft, tpot, served) of calls with 11 output tokens, one due each second."""
    tally, calls = Tally(len(rows)), []
    for number, (prompt, ttft_s, tpot_s, served) in enumerate(rows):
        due = number * SECOND
        tally.due[number] = due
        calls.append(Call(due, prompt, 11))
        ended = due + round((ttft_s + 10 * tpot_s) * 1e9)
        if served:
            tally.first_token(number, due + round(ttft_s * 1e9))
        tally.over(number, decision(number, "done" if served else "refused", "" if served else "queue_full"), ended, 0)
    return Run(tally, 10.0, 3, 0, 0), calls


def test_goodput_is_over_all_that_were_offered() -> None:
    run, calls = run_of(
        [(100, 1.0, 0.05, True), (100, 2.5, 0.05, True), (100, 0.1, 0.2, True), (100, 0.1, 0.01, False)]
    )
    found = figures(run, Columns(run, calls, H100), Objective())
    assert found["goodput_ratio"] == 0.25, "one is late, one is slow, one was refused"
    assert found["served_ratio"] == 0.75
    assert found["ttft_p50_s"] == pytest.approx(1.0)
    assert found["tpot_p99_s"] == pytest.approx(0.2, rel=0.03)
    assert found["preemptions"] == 3
    assert set(found) == set(MEANINGS)
    assert run.tally.outcomes == {"done": 3, "queue_full": 1}


def test_long_prompts_have_more_time() -> None:
    limit = 2.0 + 2.0 * first_token_s(H100, 100_000)
    run, calls = run_of([(100_000, limit - 0.01, 0.05, True), (100, limit - 0.01, 0.05, True)])
    assert figures(run, Columns(run, calls, H100), Objective())["goodput_ratio"] == 0.5


def test_the_warm_up_is_not_counted() -> None:
    run, calls = run_of([(100, 9.0, 0.05, True), (100, 1.0, 0.05, True), (100, 1.0, 0.05, True)])
    assert len(Columns(run, calls, H100, warm_s=0.5).ttft) == 2


def test_a_call_ends_once() -> None:
    tally = Tally(1)
    tally.over(0, decision(0, "done"), 5, 0)
    with pytest.raises(AssertionError, match="ended twice"):
        tally.over(0, decision(0, "done"), 6, 0)


@pytest.mark.parametrize("name", sorted(PROFILES))
@pytest.mark.parametrize(("prompt", "output"), [(1, 1), (500, 40), (7000, 300)])
def test_unloaded_times_are_those_of_a_lone_request(name: str, prompt: int, output: int) -> None:
    profile = PROFILES[name]
    engine = Engine(Limits(profile.max_num_seqs, profile.chunk_tokens, 16, profile.kv_tokens // 16), profile.step)
    row = engine.submit(0, TwinRequest("a", prompt, output))
    while (at := engine.next_event()) is not None:
        engine.advance(at)
    assert row.first_token_at is not None
    assert row.last_token_at is not None
    assert first_token_s(profile, prompt) == pytest.approx(row.first_token_at / 1e9, rel=1e-3)
    assert whole_s(profile, prompt, output) == pytest.approx(row.last_token_at / 1e9, rel=1e-3)


def test_an_engine_carries_less_of_longer_requests() -> None:
    def rate(profile: Profile, *sizes: float) -> float:
        return carries(profile, *sizes)

    assert rate(H100, 1000, 1000, 200) > rate(H100, 4000, 4000, 200) > rate(H100, 4000, 4000, 400) > 0
    assert rate(H100, 4000, 400, 200) > rate(H100, 4000, 4000, 200), "cached tokens cost no prefill"


def result(arm: str, seed: int, goodput: float, rate: float = 1.0) -> Result:
    values: dict[str, float | None] = dict.fromkeys(MEANINGS, 1.0)
    values["goodput_ratio"] = goodput
    return Result(arm, seed, rate, 4, 100, 10.0, values, {"done": 100}, 0.1, 0.1, 1000, [])


def test_intervals_and_pairs() -> None:
    assert half_width([1.0]) is None
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.303 / 3**0.5, rel=1e-3)
    first = [result("a", seed, 0.5 + seed / 10) for seed in range(3)]
    second = [result("b", seed, 0.4 + seed / 10) for seed in range(3)]
    difference = compared(first, second)["goodput_ratio"]
    assert isinstance(difference, dict)
    assert difference["difference"] == pytest.approx(0.1)
    assert difference["interval"] == pytest.approx(0.0, abs=1e-12)


def test_one_point_stands_at_the_top_and_several_in_a_list() -> None:
    one = document([result("a", 0, 0.5), result("b", 0, 0.6)], ["a", "b"], {"workload": "w"})
    assert list(one["policies"]) == ["a", "b"]  # type: ignore[call-overload]
    assert one["workload"] == "w"
    two = document([result("a", 0, 0.5), result("a", 0, 0.6, rate=2.0)], ["a"], {})
    assert [point["rate_scale"] for point in two["points"]] == [1.0, 2.0]  # type: ignore[attr-defined]


def test_plots_are_well_formed() -> None:
    drawn = [
        plots.lines("a < b", "x", "y", {"one & two": ([0.0, 1.0], [2.0, float("nan")]), "none": ([], [])}),
        plots.lines("log", "x", "y", {"a": ([0.0, 0.1, 10.0], [0.0, 0.5, 1.0])}, log_x=True),
        plots.bars("bars", "x", {"a < b": (1.0, 0.2), "b": (-0.5, None), "c": (0.0, 0.0)}),
        plots.bars("nothing", "x", {}),
        plots.lines("many", "x", "y", {str(k): ([0.0, 1.0], [0.0, 1.0]) for k in range(100)}),
    ]
    for one in drawn:
        ElementTree.fromstring(one)
    assert "the first 64 of 100" in drawn[-1]


def test_ticks_are_round() -> None:
    assert plots.ticks(0.0, 1.0) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert plots.ticks(3.0, 3.0) == [3.0]


def test_a_cdf_has_its_ends() -> None:
    import numpy as np

    curve = cdf(np.array([3.0, 1.0, 2.0]))
    assert (curve[0], curve[-1]) == (1.0, 3.0)
    assert cdf(np.array([])) == []


def test_students_t_is_that_of_the_tables() -> None:
    for freedom, known in ((1, 12.706), (10, 2.228), (11, 2.201), (15, 2.131), (20, 2.086), (30, 2.042), (120, 1.980)):
        assert student_t(freedom) == pytest.approx(known, abs=0.002)


def test_the_others_are_compared_with_equal_cost_wherever_it_stands() -> None:
    assert leader(["round-robin", "equal-cost", "random"]) == "equal-cost"
    assert leader(["round-robin", "random"]) == "round-robin"
