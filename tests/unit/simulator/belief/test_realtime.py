"""What holds within an error, and what within the spread of measured runs."""

import numpy as np
import pytest

from isochrone.nouns.settings import Settings
from isochrone.simulator.belief.alone import Served
from isochrone.simulator.belief.finding import Finding, Verdict
from isochrone.simulator.belief.realtime import compare, figures, simulated, spread_of
from isochrone.simulator.fleet import fleet
from isochrone.simulator.plan import Plan
from isochrone.simulator.workload import Call, Workload


def latencies(scale: float) -> Served:
    return Served(np.linspace(0.1, 0.3, 21) * scale, np.linspace(1.1, 2.3, 21) * scale, np.full(21, 11))


def empty() -> Finding:
    return Finding("", "", "", "", "")


def test_figures_of_a_run() -> None:
    found = figures(latencies(1.0))
    assert found["TTFT", 50] == pytest.approx(0.2)
    assert found["TPOT", 50] == pytest.approx(0.15)
    assert found["E2E", 90] == pytest.approx(2.18)


def test_within_the_error_or_not() -> None:
    finding = empty()
    assert all(holds for _, holds in compare(finding, "near", [latencies(1.0)], latencies(1.09), 0.1))
    assert not any(holds for _, holds in compare(finding, "far", [latencies(1.0)], latencies(1.11), 0.1))
    assert {row.verdict for row in finding.rows} == {Verdict.HOLDS, Verdict.MISSES}


def test_the_spread_of_equal_runs() -> None:
    assert spread_of([latencies(0.9), latencies(1.1)]) == pytest.approx([0.2] * 6)


def test_within_twice_the_spread_of_two_runs() -> None:
    runs = [latencies(0.9), latencies(1.1)]
    assert all(holds for _, holds in compare(empty(), "wide", runs, latencies(1.39), 0.1, spread_times=2.0))
    assert not any(holds for _, holds in compare(empty(), "wide", runs, latencies(1.41), 0.1, spread_times=2.0))


def test_the_simulator_is_asked_call_by_call() -> None:
    members = fleet([("h100-8b", 1)], {}, {})
    calls = [Call(0, 1000, 5), Call(10**9, 2000, 9)]
    found = simulated(Plan(Settings(policy="round-robin"), members), Workload("two", calls))
    assert found.ttft_s[1] > found.ttft_s[0] > 0.01
    assert list(found.output) == [5, 9]
