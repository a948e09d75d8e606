"""A known engine, measured with noise under light load: it is found again, and a heavier load is told beforehand."""

import random
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from isochrone.simulator.belief.admitting import AdmittingEngine
from isochrone.simulator.belief.alone import Ask, Served, serve
from isochrone.simulator.belief.calibration import Calibrated, as_run, calibrated, in_turn
from isochrone.simulator.belief.measured import Run, prompts_seen
from isochrone.simulator.belief.realtime import figures
from isochrone.simulator.belief.stepfit import fit_steady, predict, steps_of
from isochrone.twin.schedule import Limits
from isochrone.twin.steptime import StepTime

STEP = StepTime(floor_s=2e-3, base_s=1.5e-3, token_s=36e-6, kv_token_s=3e-7, pair_s=2e-8, overhead_s=0.0)
REQUEST_S, CONSTANT_S = 4e-3, 3e-3
LIMITS = Limits(256, 2048, 16, 100_000)
RATE = 10.0
"""Calls a second of the light load: one in flight on average if nobody stood in anybody's way."""


def measured(asks: Sequence[Ask], noise: float, chance: random.Random) -> Served:
    """What a client would see: each TTFT and each mean gap off by so much, and one in ten half as slow again."""
    true = serve(LIMITS, STEP, asks, partial(AdmittingEngine, request_s=REQUEST_S))

    def off() -> np.ndarray:
        slow = noise * 5
        return np.array([chance.gauss(1.0, noise) + (slow if chance.random() < 0.1 else 0.0) for _ in asks])

    ttft = (true.ttft_s + CONSTANT_S) * off()
    return Served(ttft, ttft + (true.e2e_s - true.ttft_s) * off(), true.output)


def load(rate: float, calls: int, prompt: int, output: int, chance: random.Random) -> list[Ask]:
    at, asks = 0.0, []
    for _ in range(calls):
        at += chance.expovariate(rate)
        asks.append(Ask(at, round(chance.uniform(0.2, 1.8) * prompt), round(chance.uniform(0.5, 1.5) * output)))
    return asks


def calibration(noise: float) -> Calibrated:
    chance = random.Random(7)

    def few(prompt: int, output: int, calls: int) -> Run:
        asks = [Ask(0.0, prompt, output)] * calls
        return as_run(asks, measured(asks, noise, chance))

    lone = in_turn([few(prompt, 32, 1) for _ in range(4) for prompt in (32, 64, 128, 256, 512, 1024)])
    together = in_turn([few(prompt, 100, calls) for calls in (2, 4) for prompt in (64, 512)])
    light = load(RATE, 150, 200, 40, chance)
    return calibrated(lone, together, as_run(light, measured(light, noise, chance)))


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_the_parts_of_a_step_and_of_a_request_are_found_again(noise: float) -> None:
    found = calibration(noise)
    assert found.misfit < 0.02 + noise
    step = found.step
    assert step.seconds(1, 300, 0.0) == pytest.approx(STEP.seconds(1, 300, 0.0), rel=0.02 + noise)
    assert step.seconds(8, 4000, 0.0) == pytest.approx(STEP.seconds(8, 4000, 0.0), rel=0.05 + 2 * noise)
    prompt = 300, 0, 300 * 150.0
    inside_s = STEP.seconds(*prompt) + REQUEST_S
    assert step.seconds(*prompt) + found.request_s == pytest.approx(inside_s, rel=0.1 + noise)
    assert inside_s + CONSTANT_S == pytest.approx(
        step.seconds(*prompt) + found.request_s + found.constant_s, rel=0.03 + noise
    )


@pytest.mark.parametrize("times", [2.0, 3.0])
def test_a_heavier_load_with_other_lengths_is_told_beforehand(times: float) -> None:
    chance = random.Random(8)
    heavy = load(times * RATE, 200, 300, 60, chance)
    told, seen = figures(calibration(0.05).predict(LIMITS, heavy)), figures(measured(heavy, 0.0, chance))
    for which, seconds in seen.items():
        assert told[which] == pytest.approx(seconds, rel=0.20), which


def test_an_answer_that_came_all_at_once_spoils_nothing() -> None:
    """Its mean gap is zero: by relative error it would outweigh all others."""
    lone = [Ask(0.0, 100, 32)]
    runs = [as_run(lone, measured(lone, 0.0, random.Random(1))) for _ in range(6)]
    at_once = Served(np.array([0.1]), np.array([0.1]), np.array([32]))
    found = calibrated(in_turn([*runs, as_run(lone, at_once)]), in_turn(runs), in_turn(runs))
    assert found.step.seconds(1, 116, 0.0) == pytest.approx(STEP.seconds(1, 116, 0.0), rel=0.01)


def test_a_third_of_the_rows_may_be_slow() -> None:
    rows = [(tokens, 0.0, 0.0, 1e-3 + 1e-5 * tokens) for tokens in np.arange(100.0, 1000.0, 10.0)]
    slow = [(*row[:3], row[3] * (2.0 if number % 3 == 0 else 1.0)) for number, row in enumerate(rows)]
    theta, _ = fit_steady(steps_of(slow), np.empty((len(slow), 0)))
    wanted = steps_of(rows)
    off = np.abs(predict(theta, wanted) / wanted.seconds - 1)
    assert np.median(off) < 0.02
    assert off.max() < 0.1


def test_prompts_that_stood_in_the_way() -> None:
    first, last = np.array([1.0, 1.5, 9.0]), np.array([3.0, 4.0, 9.5])
    run = Run(np.full(3, 10), np.array([5, 11, 2]), first - 0.5, first - 0.5, first, last)
    assert prompts_seen(run, [0, 1, 2]) == pytest.approx([0.25, 0.0, 0.0])


def test_a_request_takes_the_engine_time_of_its_own() -> None:
    asks = [Ask(0.0, 100, 3), Ask(0.0, 100, 3)]
    plain, paying = (
        serve(LIMITS, STEP, asks, partial(AdmittingEngine, request_s=request_s)) for request_s in (0.0, 5e-3)
    )
    alone = serve(LIMITS, STEP, asks)
    assert plain.ttft_s == pytest.approx(alone.ttft_s)
    assert paying.ttft_s == pytest.approx(alone.ttft_s + np.array([5e-3, 10e-3])), "the second waits for the first"
    assert paying.e2e_s == pytest.approx(alone.e2e_s + 10e-3), "and the first for the second; decoding costs no more"
