"""Ladders as the reports give them, their schedulers, and how curves are compared."""

import dataclasses
from collections.abc import Sequence

import pytest

from isochrone.nouns.settings import Settings
from isochrone.simulator.belief import llmd, llmd_ladder, llmd_run
from isochrone.simulator.belief.finding import Data, Finding, Verdict
from isochrone.simulator.belief.llmd import Step, Tally, saturation
from isochrone.simulator.belief.llmd_ladder import BLOCK_TOKENS, Ladder, ladders, workload
from isochrone.simulator.belief.llmd_policies import MATCH_BYTES, Estimated, Weights, _within
from isochrone.simulator.belief.llmd_run import LadderRun
from isochrone.simulator.fleet import Fleet, Member
from isochrone.simulator.plan import Plan
from isochrone.simulator.requests import Objective, Requests
from isochrone.twin.profiles import PROFILES


@pytest.fixture
def small() -> Ladder:
    """A tenth of the larger cluster, with two rates."""
    return dataclasses.replace(
        ladders()[0], pods=2, groups=30, warm=(4, 20), steps=((1, 10), (6, 20)), kv_tokens=250_000
    )


def curve(*ttfts: float) -> Sequence[Step]:
    return [Step(float(10 * number), ttft, ttft, 1.0, 0.02) for number, ttft in enumerate(ttfts, 1)]


def test_a_ladder_is_sent_as_published() -> None:
    ladder = ladders()[0]
    load, steps = workload(ladder)
    assert len(load.calls) == 750 + sum(len(step) for step in steps)
    assert [len(step) for step in steps[:4]] == [60, 200, 300, 760]
    rate = len(steps[-1]) / ((load.calls[steps[-1][-1]].at - load.calls[steps[-1][0]].at) / 1e9)
    assert rate == pytest.approx(60, rel=0.1)
    assert {call.prompt_tokens for call in load.calls} == {7200}
    once = [call.ids for call in load.calls[:750]]
    assert len(set(once)) == 750, "every prompt once before any comes again"
    assert len({ids[0] for ids in once}) == 150
    assert [call.ids for call in load.calls[750:760]] == once[:10]
    shared = 6000 // BLOCK_TOKENS
    same = [ids for ids in once if ids[0] == once[0][0]]
    assert len(same) == 5
    assert len({ids[:shared] for ids in same}) == 1
    assert len({ids[shared] for ids in same}) == 5


def test_the_estimate_sees_the_first_256_blocks_of_64_characters() -> None:
    load, _ = workload(ladders()[0])
    requests = Requests(BLOCK_TOKENS, 0, Objective(), "nothing", PROFILES["h100-8b"])
    groups: dict[int, set[tuple[int, ...]]] = {}
    for number, call in enumerate(load.calls[:750]):
        seen = _within(requests.request(str(number), call))
        assert seen
        groups.setdefault(call.ids[0], set()).add(seen)
    assert all(len(seen) == 1 for seen in groups.values()), "prompts of a group differ behind that, at 6,000 tokens"
    assert MATCH_BYTES == 16 * 1024
    assert Estimated(Weights(1.0, 1.0, 1.0)).listens


def test_saturation_lies_between_steps() -> None:
    assert saturation(curve(0.5, 5.0, 50.0)) == pytest.approx(20.0)
    assert saturation(curve(0.5, 50.0)) == pytest.approx(15.0)
    assert saturation(curve(0.5, 1.0)) is None


def test_caches_pay_in_the_simulated_ladder(small: Ladder) -> None:
    step = PROFILES["h100-70b-tp4"].step
    precise = llmd.simulated(small, step, small.schedulers["precise-scheduling"])
    scattered = llmd.simulated(small, step, "random")
    assert [one.qps for one in precise] == [1, 6]
    assert precise[1].ttft_p90_s < 0.7 * scattered[1].ttft_p90_s


def test_the_host_is_calibrated_to_the_lowest_rate(small: Ladder) -> None:
    step = llmd.qwen_steps()
    found = llmd.calibrated(small, step, 0.030)
    lowest = dataclasses.replace(small, steps=small.steps[:1])
    assert found.overhead_s > step.overhead_s
    assert llmd.simulated(lowest, found, small.schedulers["precise-scheduling"])[0].gap_s == pytest.approx(
        0.03, rel=0.02
    )


def test_how_much_more_than_its_kernels_a_prompt_takes(small: Ladder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found again where a simulated report says it. The engine's host takes so long that no step is short of it."""
    monkeypatch.setattr(llmd_ladder, "PAUSE_S", 40.0)
    ladder = dataclasses.replace(small, warm=(4, 5), steps=((4, 8),))
    step = dataclasses.replace(llmd.qwen_steps(), overhead_s=0.01)
    made = {
        name: llmd.simulated(ladder, llmd.heavier(step, 1.5), ladder.schedulers[name])
        for name in (llmd.PRECISE, llmd.RANDOM)
    }
    assert llmd.prompt_factor(ladder, step, made) == pytest.approx(1.5, abs=0.06)


def test_the_proxy_refuses_what_is_too_much(small: Ladder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llmd_run, "UNDER_WAY_MAX", 20)
    calls, _ = workload(small)
    members = Fleet(tuple(Member(f"pod-{number}", PROFILES["h100-8b"]) for number in range(2)))
    tally = LadderRun(Plan(Settings(policy="random", hold=False), members), calls).run().tally
    served = sum(tally.served)
    assert 20 < served < len(calls.calls)
    assert list(tally.served[:20]) == [1] * 20


def test_what_counts_and_what_holds(small: Ladder) -> None:
    finding, tally = Finding("", "", "", "", ""), Tally()
    theirs = {"precise-scheduling": list(curve(0.4, 0.5, 0.6)), "random-scheduling": list(curve(0.6, 4.0, 60.0))}
    llmd._compare(finding, tally, small, theirs, theirs)
    assert tally.holds
    assert (tally.pairs, tally.steps, tally.knees) == (3, 4, 2), "neither the constant's step nor one beyond saturation"
    tripled = {name: [llmd._later(one, 2 * one.ttft_p90_s) for one in steps] for name, steps in theirs.items()}
    worse = Tally()
    llmd._compare(finding, worse, small, theirs, tripled)
    assert worse.pairs_right == worse.pairs
    assert worse.steps_near == 0
    assert not worse.holds
    assert finding.rows[-3].verdict is Verdict.SHOWN


def test_published_steps(data: Data) -> None:
    found = llmd.read(data.path(llmd.FILE))
    for ladder in ladders():
        curves = found[ladder.experiment]
        assert set(curves) == set(ladder.schedulers)
        assert all([step.qps for step in one] == [rate for rate, _ in ladder.steps] for one in curves.values())
