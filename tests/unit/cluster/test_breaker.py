"""What puts an instance out, what does not, and how soon it is back. Each door has a scrape a second and no heartbeats
but those that are told."""

import pytest

from isochrone.nouns.commands import Dispatch
from isochrone.nouns.events import Outcome, Probed, Verdict
from isochrone.nouns.settings import Settings
from tests.support.fleet_door import Door


def put_out(door: Door) -> None:
    """e1 answers each request with 500 until it takes none."""
    for _ in range(100):
        door.ask()
        for attempt in door.running("e1"):
            door.end(attempt, Outcome.FAILED, 500)
        for attempt in list(door.on):
            door.end(attempt, Outcome.DONE, 200)
        if door.state("e1") == "ejected":
            return
        door.feed(Probed("e1", Verdict.OK))
    raise AssertionError("it was never put out")


@pytest.mark.parametrize("outcome", [Outcome.REJECTED, Outcome.BUSY, Outcome.CLIENT_LEFT])
def test_what_clients_do_wrong_and_a_full_engine_put_nobody_out(outcome: Outcome) -> None:
    door = Door()
    for _ in range(50):
        door.ask()
        for attempt in list(door.on):
            door.end(attempt, outcome, {Outcome.REJECTED: 400, Outcome.BUSY: 503}.get(outcome, 0))
    assert {door.state("e0"), door.state("e1")} == {"ready"}
    door.check_over()


def test_an_instance_that_has_failed_requests_is_tried_within_two_seconds_of_being_well() -> None:
    """However long it was broken: each trial fails at once and costs its client one retry."""
    door = Door(Settings(policy="round-robin", retry_tokens_max=1e9))
    put_out(door)
    trials = 0
    for _ in range(60):
        door.feed(Probed("e1", Verdict.OK))
        door.ask()
        for attempt in door.running("e1"):
            trials += 1
            door.end(attempt, Outcome.FAILED, 500)
        door.pass_(1.0)
        for attempt in list(door.on):
            door.end(attempt, Outcome.DONE, 200)
    assert 20 <= trials <= 60
    assert door.failed() == []
    well_at = door.now
    while door.state("e1") != "ready":
        door.feed(Probed("e1", Verdict.OK))
        door.ask()
        door.pass_(1.0)
        for attempt in list(door.on):
            door.end(attempt, Outcome.DONE, 200)
    assert door.now - well_at <= 2_000_000_000
    door.check_over()


def test_trials_that_fail_late_become_rare() -> None:
    """Each costs its client the whole wait."""
    door = Door(Settings(policy="round-robin", retry_tokens_max=1e9, silence_s=None))
    put_out(door)
    trials = 0
    for _ in range(60):
        door.feed(Probed("e1", Verdict.OK))
        door.ask()
        slow = door.running("e1")
        door.pass_(2.0, tokens=False)
        for attempt in slow:
            trials += 1
            door.end(attempt, Outcome.TIMED_OUT)
        for attempt in list(door.on):
            door.end(attempt, Outcome.DONE, 200)
    assert 3 <= trials <= 8
    door.check_over()


def test_a_killed_instance_that_was_started_again_takes_requests_with_its_first_answer() -> None:
    """However often that has happened: its metrics say that it is another process."""
    door = Door()
    for _ in range(6):
        door.ask()
        door.ask()
        door.pass_(2.0)
        door.working.discard("e1")
        door.reads.discard("e1")
        for attempt in door.running("e1"):
            door.end(attempt, Outcome.LOST)
        for _ in range(3):
            door.feed(Probed("e1", Verdict.REFUSED))
        assert door.state("e1") == "ejected"
        door.figures["e1"] = type(door.figures["e1"])(engine="vllm", running=0, waiting=0, generation_tokens=0.0)
        door.working.add("e1")
        door.reads.add("e1")
        door.pass_(1.0)
        assert door.state("e1") == "ready"
    door.check_over()


def test_a_request_that_one_instance_has_failed_is_no_trial_of_another() -> None:
    door = Door(Settings(policy="round-robin", retry_tokens_max=1e9), instances=3)
    put_out(door)
    door.feed(Probed("e1", Verdict.OK))
    assert door.state("e1") == "probing"
    for _ in range(20):
        request = door.ask()
        attempt, sent = next((attempt, one) for attempt, one in door.on.items() if one.request == request)
        if sent.instance == "e1":
            door.end(attempt, Outcome.DONE, 200)
            break
        door.end(attempt, Outcome.BUSY, 503)
        again = [one for one in door.told(Dispatch) if isinstance(one, Dispatch) and one.request == request][-1]
        assert (again.ordinal, again.instance != "e1") == (2, True)
        door.end(again.attempt, Outcome.DONE, 200)
    door.check_over()
