"""The driver: when calls are sent, what requests say, and that a run can be repeated."""

from statistics import fmean

import pytest

from isochrone.kv.hashing import block_end
from isochrone.nouns.events import Ended, Event, FirstToken, Progress
from isochrone.nouns.settings import Settings
from isochrone.simulator.fleet import Fleet, fleet
from isochrone.simulator.plan import Plan
from isochrone.simulator.requests import Objective, Requests
from isochrone.simulator.run import START, Simulation, simulate
from isochrone.simulator.unloaded import whole_s
from isochrone.simulator.workload import Call, Workload
from isochrone.twin.profiles import PROFILES

SECOND = 10**9
H100 = PROFILES["h100-8b"]


def two() -> Fleet:
    return fleet([("h100-8b", 2)], {}, {})


def test_calls_are_sent_when_they_are_due() -> None:
    calls = [Call(k * SECOND // 5, 300, 20) for k in range(50)]
    run = simulate(Plan(Settings(), two()), Workload("w", calls))
    assert list(run.tally.due) == [START + call.at for call in calls]
    assert run.tally.outcomes == {"done": 50}


def test_a_turn_waits_for_the_one_before_and_the_gap() -> None:
    calls = [Call(0, 300, 200, session=1), Call(SECOND // 10, 600, 5, session=1, gap=2 * SECOND)]
    run = simulate(Plan(Settings(), two()), Workload("w", calls))
    assert run.tally.due[1] == run.tally.ended[0] + 2 * SECOND
    calls = [Call(0, 300, 2, session=1), Call(30 * SECOND, 600, 5, session=1, gap=2 * SECOND)]
    run = simulate(Plan(Settings(), two()), Workload("w", calls))
    assert run.tally.due[1] == START + 30 * SECOND, "not before its recorded time"


def test_a_gap_that_was_not_recorded_is_what_the_times_leave() -> None:
    calls = [Call(0, 300, 200, session=1), Call(10 * SECOND, 600, 5, session=1)]
    slow = fleet([("h100-8b", 1)], {0: 50.0}, {})
    run = simulate(Plan(Settings(), slow), Workload("w", calls))
    gap = run.tally.due[1] - run.tally.ended[0]
    assert gap == pytest.approx(10 * SECOND - whole_s(H100, 300, 200) * 1e9, abs=1000)


def test_the_same_seed_gives_the_same_run() -> None:
    calls = [Call(k * SECOND // 20, 500 + 13 * (k % 50), 40, ids=(k % 3, 10 + k % 9)) for k in range(300)]
    runs = [simulate(Plan(Settings(), two()), Workload("w", list(calls)), seed) for seed in (1, 1, 2)]
    assert runs[0].tally.ended == runs[1].tally.ended
    assert runs[0].tally.ended != runs[2].tally.ended


class Listening(Simulation):
    """Keeps the events of attempts."""

    def feed(self, event: Event) -> None:
        if isinstance(event, FirstToken | Progress | Ended):
            self.__dict__.setdefault("heard", []).append((self.now, event))
        super().feed(event)


def test_progress_is_told_as_a_relay_does() -> None:
    simulation = Listening(Plan(Settings(), two()), Workload("w", [Call(0, 300, 100)]))
    simulation.run()
    heard = [event for _, event in simulation.__dict__["heard"]]
    assert isinstance(heard[0], FirstToken)
    assert [event.output_tokens for event in heard[1:-1]] == [33, 65, 97]
    assert isinstance(heard[-1], Ended)
    assert heard[-1].usage.completion_tokens == 100


def test_prefixes_are_shared_between_calls_and_not_between_copies() -> None:
    made = Requests(16, 1, Objective(), "nothing", H100)
    ids = tuple(range(100, 150))
    one = made.request("a", Call(0, 2000, 1, ids=ids))
    two = made.request("b", Call(0, 2000, 1, ids=ids))
    other = made.request("c", Call(0, 2000, 1, ids=ids, copy=1))
    shared_blocks = sum(block_end(k) // 4 <= 50 * 16 for k in range(len(one.blocks)))
    assert shared_blocks == 6
    assert one.blocks[:6] == two.blocks[:6]
    assert not set(one.blocks[6:]) & set(two.blocks[6:])
    assert not set(one.blocks) & set(other.blocks)
    assert all(0 <= block < 1 << 64 for block in (*one.blocks, *other.blocks))
    assert len(one.blocks) == 2000 // 128
    assert made.hashes(Call(0, 2000, 1, ids=ids, copy=1)) != list(ids)


def test_sizes_have_to_be_estimated() -> None:
    made = Requests(16, 1, Objective(), "nothing", H100)
    sizes = [made.request("a", Call(0, 1000, 1)).size.text_bytes for _ in range(300)]
    assert len(set(sizes)) > 100
    assert fmean(sizes) == pytest.approx(4400, rel=0.02)


@pytest.mark.parametrize(("told", "sheddable"), [("nothing", None), ("slo", False), ("shed", True)])
def test_what_requests_tell_of_their_objective(told: str, sheddable: bool | None) -> None:
    slo = Requests(16, 1, Objective(), told, H100).request("a", Call(0, 1000, 1)).slo
    if sheddable is None:
        assert slo is None
    else:
        assert slo is not None
        assert slo.sheddable is sheddable
        assert slo.tpot_s == 0.1
        assert slo.ttft_s == pytest.approx(2.0 + 2 * 0.0236, rel=0.2)


def test_timelines_are_kept_where_asked() -> None:
    calls = [Call(k * SECOND // 5, 300, 200) for k in range(50)]
    run = simulate(Plan(Settings(), two(), samples=20), Workload("w", calls))
    line = run.timeline
    assert line is not None
    assert 18 <= len(line.at_s) <= 60
    assert all(len(values) == len(line.at_s) for values in line.running.values())
    assert max(max(values) for values in line.running.values()) >= 1
