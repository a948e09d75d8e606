"""Attainment against what can be said by hand."""

from isochrone.simulator.belief import distserve
from isochrone.simulator.belief.distserve import alone_is_good, attainment, steps_of_opt, stretched
from isochrone.simulator.belief.finding import Data
from isochrone.twin.steptime import StepTime

STEP = StepTime(floor_s=0.02, base_s=0.02, token_s=1e-4, kv_token_s=0.0, pair_s=0.0, overhead_s=0.0)


def test_attainment_of_an_engine_that_is_nearly_idle() -> None:
    assert attainment(STEP, [(1000, 5)], 0.01, seed=0) > 0.99
    assert attainment(STEP, [(2400, 5)], 0.01, seed=0) == 0.0, "0.26 s for the prompt alone"


def test_attainment_falls_with_the_rate() -> None:
    low, high = (attainment(STEP, [(1000, 100)], rate, seed=0) for rate in (1.0, 8.0))
    assert low > high + 0.2


def test_alone() -> None:
    assert alone_is_good(STEP, 2300, 5)
    assert not alone_is_good(STEP, 2301, 5)


def test_lengths_are_stretched_within_the_context() -> None:
    longer = stretched([(100, 50), (300, 150)])
    assert longer[0] == (378, 100)
    assert all(prompt + output <= distserve.CONTEXT_TOKENS for prompt, output in stretched([(10, 10), (2000, 40)]))


def test_published_fits(data: Data) -> None:
    step, error = steps_of_opt(data)
    assert error < 0.05
    assert 0.3 < step.seconds(2048, 0, 2048 * 1024.0) < 0.4
