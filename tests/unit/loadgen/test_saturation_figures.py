"""Arithmetic of the saturation benchmark."""

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

from isochrone.loadgen.calls import Result


@pytest.fixture(scope="module")
def saturation() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "saturation.py"
    spec = importlib.util.spec_from_file_location("saturation", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["saturation"] = module
    spec.loader.exec_module(module)
    return module


def test_interval_of_a_ratio(saturation: ModuleType) -> None:
    made = saturation.ratio([1.0, 1.1, 0.9, 1.05, 0.95])
    logs = [math.log(each) for each in made.pairs]
    assert made.mean == pytest.approx(math.exp(sum(logs) / 5))
    assert made.low < made.mean < made.high
    # By hand: standard deviation of the logs 0.0794, times 2.132 / sqrt(5).
    assert math.log(made.high / made.mean) == pytest.approx(0.0757, abs=0.0005)
    assert saturation.ratio([1.0] * 5).low == pytest.approx(1.0)


def test_one_pair_says_nothing(saturation: ModuleType) -> None:
    assert saturation.ratio([1.5]).low == 0.0


def test_tokens_in_a_span(saturation: ModuleType) -> None:
    def result(first: float, last: float) -> Result:
        return Result("default", True, 0.0, first_token_at=first, last_token_at=last, tokens=10)

    assert saturation.tokens_between([result(0, 10)], 0, 10) == pytest.approx(10)
    assert saturation.tokens_between([result(0, 10)], 5, 20) == pytest.approx(5)
    assert saturation.tokens_between([result(0, 4)], 5, 20) == 0
    assert saturation.tokens_between([Result("default", True, 0.0)], 0, 10) == 0


def test_both_policies_get_the_same_sizes_and_other_texts(saturation: ModuleType) -> None:
    plan = saturation.Plan((), "p", 8, 2, 1, 0, 1, 32)
    one, other = (next(saturation.calls(plan, "m", "sizes", text)) for text in ("a", "b"))
    assert len(one.body) == len(other.body)
    assert one.body != other.body
