"""Several gateways: who gets which event, and what each knows of the others' load."""

import itertools
import random
from collections.abc import Sequence

from isochrone.cluster import Cluster
from isochrone.nouns.commands import Command, Dispatch
from isochrone.nouns.events import Arrived, Ended, Event, Found, ModelsSeen, Observed, Outcome, Probed, Verdict
from isochrone.nouns.instance import InstanceSpec, ModelCard, Snapshot
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.nouns.settings import Settings
from isochrone.simulator.fleet import fleet
from isochrone.simulator.gateways import RELAYS, Gateways, relay_of
from isochrone.simulator.plan import Plan
from isochrone.simulator.run import Simulation
from isochrone.simulator.workload import Call, Workload

SECOND = 10**9


def gateways(count: int, sticky: bool = False) -> Gateways:
    made = Gateways([Cluster(Settings(), random.Random(n)) for n in range(count)], random.Random(7), sticky)
    made.handle(SECOND, Found(InstanceSpec(id="e0", url="http://e0")))
    made.handle(SECOND, ModelsSeen("e0", (ModelCard("m", 1000),)))
    made.handle(SECOND, Probed("e0", Verdict.OK))
    made.handle(SECOND, Observed("e0", Snapshot(running=0, waiting=0), SECOND))
    return made


def send(to: Gateways, name: str, session: str = "") -> int:
    (command,) = to.handle(SECOND, Arrived(Request(id=name, model="m", path="/v1", session=session)))
    assert isinstance(command, Dispatch)
    return command.attempt


def test_attempts_of_different_gateways_have_different_numbers_and_end_where_they_began() -> None:
    made = gateways(3)
    attempts = [send(made, f"r{number}") for number in range(60)]
    assert len(set(attempts)) == 60
    assert {relay_of(attempt) // RELAYS for attempt in attempts} == {0, 1, 2}
    counts = [door.in_flight() for door in made.doors]
    assert sum(counts) == 60
    assert min(counts) >= 10
    for attempt in attempts:
        made.handle(2 * SECOND, Ended(attempt, Outcome.DONE, True, 200))
    assert [door.in_flight() for door in made.doors] == [0, 0, 0]


def test_a_session_keeps_to_its_gateway_where_asked() -> None:
    made = gateways(4, sticky=True)
    homes = {session: {relay_of(send(made, f"{session}{k}", session)) for k in range(5)} for session in "abcdefgh"}
    assert all(len(home) == 1 for home in homes.values())
    assert len(set.union(*homes.values())) > 1


def test_load_of_the_others_is_what_the_engine_runs_less_what_we_sent() -> None:
    """Two gateways, 7 requests on one instance, 10 running there: 3 are of somebody who is no gateway at all."""
    made = gateways(2)
    for number in range(7):
        send(made, f"r{number}")
    ours = [door.in_flight() for door in made.doors]
    assert sum(ours) == 7
    assert min(ours) > 0
    for turn in range(6):  # three scrapes each, in turns
        at = (2 + turn) * SECOND
        made.handle(at, Observed("e0", Snapshot(running=8, waiting=2), at))
        seen = [door.instances()[0].foreign_running for door in made.doors]
        assert seen == ([0, 0] if turn < 4 else [10 - ours[0], 0] if turn == 4 else [10 - ours[0], 10 - ours[1]])


class Noting(Cluster):
    """Keeps when it was told of a scrape of the first instance."""

    def __init__(self, number: int) -> None:
        super().__init__(Settings(), random.Random(number))
        self.scraped_at: list[int] = []

    def handle(self, now: Instant, event: Event) -> Sequence[Command]:
        if isinstance(event, Observed) and event.instance == "h100-8b-0":
            self.scraped_at.append(event.taken_at)
        return super().handle(now, event)


class Noted(Simulation):
    def _door(self, seed: int) -> Gateways:
        return Gateways([Noting(number) for number in range(4)], random.Random(seed), False)


def test_a_gateway_scrapes_each_instance_once_in_an_interval() -> None:
    calls = [Call(k * SECOND // 2, 300, 5) for k in range(21)]
    simulation = Noted(Plan(Settings(), fleet([("h100-8b", 2)], {}, {}), gateways=4), Workload("w", calls))
    run = simulation.run()
    assert run.tally.outcomes == {"done": 21}
    assert run.notes == ["4 gateways, each request to any of them; they know of each other only by their scrapes"]
    assert isinstance(simulation.cluster, Gateways)
    times = [door.scraped_at[1:] for door in simulation.cluster.doors if isinstance(door, Noting)]
    assert len(times) == 4
    assert all(later - before == SECOND for one in times for before, later in itertools.pairwise(one))
    assert all(9 <= len(one) <= 11 for one in times)
    assert {(one[0] - times[0][0]) % SECOND for one in times} == {0, SECOND // 4, SECOND // 2, 3 * SECOND // 4}
