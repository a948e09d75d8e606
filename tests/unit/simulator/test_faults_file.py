"""The faults file, and what each fault does to a run."""

from pathlib import Path

import pytest

from isochrone.nouns.settings import Settings
from isochrone.simulator.faults import FAULTS, Fault, check_instances, read_faults
from isochrone.simulator.fleet import Fleet, fleet
from isochrone.simulator.plan import Plan, Run
from isochrone.simulator.run import Simulation, simulate
from isochrone.simulator.workload import BadWorkload, Call, Workload

SECOND = 10**9


def test_faults_are_read_in_order_of_time(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(
        "- {at: 40, fault: dead, instance: h100-8b-0, until: 60}\n"
        "- {at: 30, fault: slow, instance: 1, factor: 2.5}\n"
        "- {at: 50, fault: scale-out, count: 2}\n"
    )
    faults = read_faults(str(path))
    assert [fault.fault for fault in faults] == ["slow", "dead", "scale-out"]
    assert faults[0].factor == 2.5
    check_instances(faults, ["h100-8b-0", "h100-8b-1"])
    with pytest.raises(BadWorkload, match="there is no instance 1"):
        check_instances(faults, ["h100-8b-0"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {at: 1, fault: ded, instance: 0}", "fault 1: there is no fault 'ded'; did you mean 'dead'?"),
        ("- {at: 1, fault: dead}", "say which `instance`"),
        ("- {at: 5, fault: dead, instance: 0, until: 5}", "`until` comes after it"),
        ("- {at: -1, fault: dead, instance: 0}", "`at` is 0 or more"),
        ("- {at: 1, fault: slow, instance: 0, factor: 0}", "`factor` is above 0"),
        ("- {at: soon, fault: dead, instance: 0}", "fault 1: Expected `float`"),
        ("- {at: 1, fault: dead, instance: 0, whom: 3}", "unknown field `whom`"),
        ("at: 1", "expected a list of faults"),
        ("- [", "cannot be read"),
    ],
)
def test_a_wrong_fault_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(text)
    with pytest.raises(BadWorkload) as refused:
        read_faults(str(path))
    assert said in str(refused.value)


def some_calls(count: int = 200, seconds: float = 40.0) -> Workload:
    step = seconds / count
    calls = [Call(round(k * step * SECOND), 600, 60, ids=tuple(range(20))) for k in range(count)]
    return Workload("w", calls)


def three() -> Fleet:
    return fleet([("h100-8b", 3)], {}, {})


def run_with(*faults: Fault, **plan: object) -> tuple[Run, Simulation]:
    simulation = Simulation(Plan(Settings(), three(), faults=faults, **plan), some_calls())  # type: ignore[arg-type]
    return simulation.run(), simulation


def test_without_faults_everybody_is_served() -> None:
    run, _ = run_with()
    assert run.tally.outcomes == {"done": 200}
    assert run.hit_tokens > 0.3 * run.query_tokens


@pytest.mark.parametrize("name", sorted(set(FAULTS) - {"hung"}))
def test_two_of_three_instances_serve_all_that_had_no_byte_yet(name: str) -> None:
    run, _ = run_with(Fault(10.0, name, 1, 25.0))
    assert run.tally.outcomes == {"done": 200}


def test_who_is_dead_answers_nothing_until_it_is_back() -> None:
    run, simulation = run_with(Fault(10.0, "dead", 1, 20.0))
    placed = [
        number
        for number, due in zip(run.tally.placed, run.tally.due, strict=True)
        if 11 * SECOND < due - SECOND < 19 * SECOND
    ]
    assert set(placed) == {0, 2}
    assert simulation.hosts["h100-8b-1"].started_at == 21 * SECOND


def test_streams_that_cannot_resume_are_lost_with_their_instance() -> None:
    long = Workload("w", [Call(k * SECOND // 10, 100, 2000) for k in range(30)])
    outcomes = []
    for resumable in (True, False):
        plan = Plan(Settings(), three(), faults=(Fault(6.0, "dead", 0),), resumable=resumable)
        outcomes.append(simulate(plan, long).tally.outcomes)
    assert outcomes[0] == {"done": 30}
    assert outcomes[1]["done"] < 30


def test_a_hung_instance_costs_its_streams_the_gap_limit() -> None:
    run, _ = run_with(Fault(10.0, "hung", 1, 25.0))
    assert run.tally.outcomes["done"] >= 190
    assert sum(run.tally.outcomes.values()) == 200


def test_scaling_out_and_in_changes_who_serves() -> None:
    faults = (Fault(5.0, "scale-out", count=2), Fault(6.0, "scale-in", 0))
    strangers = Workload("w", [Call(k * SECOND // 20, 600, 60) for k in range(800)])
    run = simulate(Plan(Settings(), three(), faults=faults), strangers)
    late = {
        number for number, due in zip(run.tally.placed, run.tally.due, strict=True) if due > 20 * SECOND
    }  # fmt: skip
    assert 0 not in late
    assert {3, 4} & late


def test_a_slow_instance_gets_less() -> None:
    run, _ = run_with(Fault(0.0, "slow", 2, factor=8.0))
    counts = [list(run.tally.placed).count(number) for number in range(3)]
    assert counts[2] < min(counts[:2])


def test_a_request_that_fits_nowhere_is_said_before_the_run() -> None:
    with pytest.raises(BadWorkload, match=r"1 of 2 requests fit no instance: the longest has 500,001 tokens"):
        three().check([Call(0, 10, 1), Call(0, 500_000, 1)])
