"""Experts that are asked more than others: the formula by hand, the draw, and the words on the command line."""

from dataclasses import replace

import pytest

from isochrone.nouns.settings import Settings
from isochrone.simulator.experts import Experts, asked, imbalance, parse, power_law
from isochrone.simulator.faults import Fault
from isochrone.simulator.fleet import Fleet, fleet
from isochrone.simulator.plan import Plan
from isochrone.simulator.run import Simulation
from isochrone.simulator.workload import BadWorkload, Call, Workload

SECOND = 10**9


def test_the_busiest_device_by_hand() -> None:
    """Popularity 5, 1, 1, 1 and two experts a token: the first gets every token (2 x 5/8 would be more), the others
    share the second: 1/3 each. On two devices: 1 + 1/3 and 2/3, mean 1, so the busiest has 4/3 of it."""
    loads = asked([1.0, 5.0, 1.0, 1.0], top=2)
    assert loads == pytest.approx([1 / 3, 1.0, 1 / 3, 1 / 3])
    assert imbalance(loads, devices=2) == pytest.approx(4 / 3)
    assert imbalance(loads, devices=4) == pytest.approx(2.0)
    assert imbalance(loads, devices=1) == 1.0


def test_quantiles_of_the_power_law() -> None:
    """Density x^-2 from 1 to 100: the median is 1 / (1 - .5 x .99). Density 1/x: the median is 10."""
    assert power_law(0.5, 2.0, 100.0) == pytest.approx(1 / 0.505)
    assert power_law(0.5, 1.0, 100.0) == pytest.approx(10.0)
    assert [power_law(u, 1.2, 1638.0) for u in (0.0, 1.0)] == pytest.approx([1.0, 1638.0])


def test_engines_differ_and_are_drawn_again_alike() -> None:
    factors = [Experts().factor(engine) for engine in range(20)]
    assert factors == [Experts().factor(engine) for engine in range(20)]
    assert len(set(factors)) == 20
    assert all(1.05 < factor < 1.8 for factor in factors)
    assert factors != [Experts(seed=1).factor(engine) for engine in range(20)]
    assert Experts(share=0.0).factor(3) == 1.0
    assert Experts(devices=1).factor(3) == pytest.approx(1.0)
    more = [Experts(devices=64).factor(engine) for engine in range(20)]
    assert sum(more) > sum(factors), "the fewer experts on a device, the less they even out"


def test_words() -> None:
    assert parse("") == Experts()
    assert parse("128,top=4,devices=16,share=0.3,exponent=1.1,seed=7") == Experts(128, 4, 16, 0.3, 1.1, 1.1, 7)
    assert parse("exponent=0.5-2") == replace(Experts(), least=0.5, most=2.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("devises=8", "did you mean 'devices'"),
        ("100,devices=8", "cannot be spread evenly"),
        ("8,top=9", "1 <= top"),
        ("share=2", "share is 0 to 1"),
        ("exponent=2-1", "the smaller one first"),
        ("top=x", "is no number"),
        ("share=nan", "share is 0 to 1"),
    ],
)
def test_wrong_words_are_explained(text: str, said: str) -> None:
    with pytest.raises(BadWorkload, match=said):
        parse(text)


def ranked(ranks: int) -> Fleet:
    return fleet([("h100-8b", 4)], {}, {}, ranks, Experts())


def test_members_of_an_engine_have_its_experts_and_step_together() -> None:
    made = ranked(2)
    assert [member.engine for member in made.members] == [0, 0, 1, 1]
    paces = [member.pace for member in made.members]
    assert paces == [Experts().factor(0)] * 2 + [Experts().factor(1)] * 2
    assert [member.engine for member in made.further(4, 3)] == [2, 2, 3]
    assert [member.engine for member in ranked(1).members] == [None] * 4
    assert len(made.notes) == 2
    with pytest.raises(BadWorkload, match="no whole number of engines"):
        ranked(3)


def test_a_run_of_ranks_whose_process_dies_together() -> None:
    """A rank dies: the other rank of its engine goes with it, the other engine serves everything, and all come back."""
    calls = [Call(k * SECOND // 10, 500, 60) for k in range(100)]
    faults = (Fault(3.0, "dead", 0, 6.0),)
    simulation = Simulation(Plan(Settings(), ranked(2), faults=faults), Workload("w", calls))
    run = simulation.run()
    assert run.tally.outcomes == {"done": 100}
    placed = run.tally.placed
    during = {placed[k] for k in range(40, 60)}
    assert during == {2, 3}
    assert {placed[k] for k in range(100)} == {0, 1, 2, 3}
    groups = {host.group for host in simulation.hosts.values()}
    assert len(groups) == 2
    assert all(group is not None and len(group.ranks) == 2 for group in groups)
