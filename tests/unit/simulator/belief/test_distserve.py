"""Attainment against what can be said by hand."""

import dataclasses
import random

import numpy as np
import pytest

from isochrone.simulator.belief import distserve
from isochrone.simulator.belief.alone import Ask, serve
from isochrone.simulator.belief.distserve import alone_is_good, attainment, steps_of_opt, stretched
from isochrone.simulator.belief.finding import Data
from isochrone.twin.prompts_first import PromptsFirstEngine
from isochrone.twin.steptime import StepTime

STEP = StepTime(floor_s=0.02, base_s=0.02, token_s=1e-4, kv_token_s=0.0, pair_s=0.0, overhead_s=0.0)
CHUNKED = dataclasses.replace(distserve.LIMITS, chunk_tokens=2560, whole_prompts=False)


def test_attainment_of_an_engine_that_is_nearly_idle() -> None:
    assert attainment(STEP, [(1000, 5)], 0.01, seed=0) > 0.99
    assert attainment(STEP, [(2400, 5)], 0.01, seed=0) == 0.0, "0.26 s for the prompt alone"


def test_attainment_falls_with_the_rate() -> None:
    low, high = (attainment(STEP, [(1000, 100)], rate, seed=0) for rate in (1.0, 8.0))
    assert low > high + 0.2


def test_alone() -> None:
    assert alone_is_good(STEP, 2300, 5)
    assert not alone_is_good(STEP, 2301, 5)


def test_lengths_are_stretched_to_the_papers_means_within_the_context() -> None:
    chance = random.Random(1)
    made = [(round(chance.lognormvariate(4, 1.2)) + 1, chance.randint(50, 500)) for _ in range(3000)]
    longer, factors = stretched(made)
    assert np.mean(longer, axis=0) == pytest.approx([distserve.PAPER_PROMPT, distserve.PAPER_OUTPUT], rel=0.01)
    assert all(prompt + output < distserve.CONTEXT_TOKENS for prompt, output in longer)
    assert factors[0] > 2 > 1 > factors[1]


def test_decoding_waits_for_prompts() -> None:
    asks = [Ask(0.0, 100, 50), *(Ask(0.1 + 0.15 * number, 1000, 2) for number in range(20))]
    old, now = serve(distserve.LIMITS, STEP, asks, PromptsFirstEngine), serve(CHUNKED, STEP, asks)
    assert old.tpot_s[0] > now.tpot_s[0] + 0.004 > 0.05, "each prompt of 0.12 s costs a step more"


def test_published_fits(data: Data) -> None:
    step, error = steps_of_opt(data)
    assert error < 0.05
    assert 0.3 < step.seconds(2048, 0, 2048 * 1024.0) < 0.4
