"""More is asked than four instances can give, and one of them is lost every 20 s: clients see whole answers and 503.

In virtual time; `make soak` does the same to real processes.
"""

import random
from collections import Counter

import pytest

from isochrone.nouns.commands import Refuse
from isochrone.nouns.decision import Decision
from isochrone.nouns.settings import Settings
from isochrone.simulator.faults import Fault
from isochrone.simulator.fleet import fleet
from isochrone.simulator.plan import Plan
from isochrone.simulator.run import Simulation
from isochrone.simulator.workload import Call, Workload

SECOND = 10**9
LASTS_S = 65.0
CALLS_PER_S = 40.0
"""Half as much again as 4 instances of 16 slots can serve."""


class Watched(Simulation):
    """Keeps what became of each call."""

    def __init__(self, plan: Plan, workload: Workload, seed: int) -> None:
        super().__init__(plan, workload, seed)
        self.records: list[Decision] = []

    def obey(self, command: object) -> None:
        if isinstance(command, Refuse):
            assert command.error.retry_after_s is not None
        super().obey(command)

    def _recorded(self, record):  # type: ignore[no-untyped-def]
        self.records.append(record.decision)
        super()._recorded(record)


@pytest.mark.parametrize("fault", ["dead", "hung", "wedged"])
def test_an_overload_that_loses_an_instance_every_20_s_ends_in_answers_and_503_only(fault: str) -> None:
    chance = random.Random(1)
    calls, at = [], 0.0
    while at < LASTS_S:
        at += chance.expovariate(CALLS_PER_S)
        calls.append(Call(int(at * SECOND), chance.randint(200, 3000), chance.randint(50, 400)))
    faults = tuple(Fault(20.0 * k, fault, k % 4, 20.0 * k + 12.0) for k in range(1, 4))
    members = fleet([("h100-8b", 4)], {}, {"max_num_seqs": 16})
    run = Watched(Plan(Settings(queue_requests_max=300), members, faults=faults), Workload("w", calls), 1)
    run.run()
    ends = Counter((record.outcome, record.status) for record in run.records)
    assert set(ends) == {("done", 200), ("refused", 503)}, ends
    assert ends["done", 200] > 1500
    assert sum(len(record.tries) > 1 for record in run.records) >= 30
    if fault != "dead":
        whys = [one.outcome for record in run.records for one in record.tries[:-1]]
        assert whys.count("aborted") > whys.count("timed_out")
