"""The limit that a client sets for its whole request, at the cluster's door."""

from isochrone.nouns.commands import Dispatch, Fail, Refuse
from isochrone.nouns.events import Arrived, Outcome
from isochrone.nouns.instant import SECOND
from isochrone.nouns.settings import Settings
from tests.support.fleet_door import Door
from tests.support.rig import Rig


def last_error(door: Door) -> tuple[int, str, bool]:
    command = door.failed()[-1]
    assert isinstance(command, Refuse | Fail)
    assert command.error is not None
    return command.error.status, command.error.code, command.error.worth_retrying


def test_each_attempt_is_given_what_is_left_of_the_limit() -> None:
    door = Door()
    door.ask(limit_s=10.0)
    (first,) = door.on.values()
    assert first.limits.deadline_s == 10.0
    door.pass_(3.0, tokens=False)
    door.end(first.attempt, Outcome.UNREACHABLE)
    (second,) = door.on.values()
    assert second.limits.deadline_s == 7.0
    door.ask()
    assert door.on[max(door.on)].limits.deadline_s is None
    door.check_over()


def test_what_ends_at_its_limit_is_not_tried_again_and_is_nobodys_fault() -> None:
    door = Door()
    for _ in range(20):
        door.ask(limit_s=1.0)
        door.pass_(1.0)
        (attempt,) = door.on
        door.end(attempt, Outcome.TIMED_OUT, why="deadline_s")
        assert not door.on
        assert last_error(door) == (504, "deadline_exceeded", False)
    assert {door.state("e0"), door.state("e1")} == {"ready"}
    door.check_over()


def test_a_request_that_cannot_meet_its_limit_is_refused_at_once() -> None:
    """100,000 tokens in half a second: not even an idle instance could. The same with an hour is sent."""
    door = Door(Settings(policy="round-robin", samples_warm=0))
    door.ask(prompt_tokens=100_000, limit_s=0.5)
    assert last_error(door) == (504, "deadline_exceeded", False)
    assert not door.on
    door.ask(prompt_tokens=100_000, limit_s=3600.0)
    assert len(door.on) == 1
    door.check_over()


def test_an_unproven_model_refuses_nobody() -> None:
    door = Door()
    door.ask(prompt_tokens=100_000, limit_s=0.5)
    assert len(door.on) == 1
    door.check_over()


def test_a_held_request_is_refused_when_its_limit_can_no_longer_be_met() -> None:
    """Others wait on."""
    rig = Rig(Settings(samples_warm=0), engines=2, token_s=100e-6)
    for number in range(80):
        rig.feed(Arrived(rig.request(f"r{number}", b"%d" % number * 9_000, output=5, limit_s=5.0)))
    for number in range(80, 100):
        rig.feed(Arrived(rig.request(f"r{number}", b"%d" % number * 9_000, output=5)))
    rig.run()
    rig.check_over()
    late = [name for name, how in rig.ended.items() if how == "refused:deadline_exceeded"]
    assert late
    assert all(int(name[1:]) < 80 for name in late)
    assert all(rig.ended[f"r{number}"] == "done" for number in range(80, 100))
    held = [when for when, name, _ in rig.dispatches if int(name[1:]) < 80]
    assert max(held) <= 6 * SECOND


def test_a_stream_that_lost_its_instance_keeps_to_the_limit_too() -> None:
    door = Door()
    door.ask(limit_s=10.0)
    door.pass_(4.0)
    (attempt,) = door.on
    door.end(attempt, Outcome.LOST)
    (again,) = door.told(Dispatch)[1:]
    assert isinstance(again, Dispatch)
    assert (again.continues, again.limits.deadline_s) == (True, 6.0)
    door.check_over()
