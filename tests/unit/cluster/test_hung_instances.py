"""Instances that hang are found long before the fixed limits, and what only takes its time is left alone."""

import pytest

from isochrone.nouns.commands import Abort, Dispatch
from isochrone.nouns.events import Adopted, Outcome
from isochrone.nouns.instant import SECOND
from isochrone.nouns.request import Request
from isochrone.nouns.settings import Settings
from tests.support.fleet_door import Door


def busy(door: Door, requests: int = 8, warm_s: float = 20.0, stream: bool = True) -> None:
    """Streams run on all instances, for long enough that step times are known."""
    for _ in range(requests):
        door.ask(stream=stream)
    door.pass_(warm_s)


def test_an_instance_whose_streams_and_figures_stand_still_is_left_within_seconds() -> None:
    """Its heartbeats may be answered all the time: none comes here, and none is missed."""
    door = Door()
    busy(door)
    victims = door.running("e1")
    assert len(victims) == 4
    door.working.discard("e1")
    door.pass_(12.0)
    assert door.running("e1") == []
    assert len(door.running("e0")) == 8
    assert door.state("e1") == "ejected"
    moved = [command for command in door.told(Dispatch) if isinstance(command, Dispatch) and command.continues]
    assert len(moved) == 4
    assert door.failed() == []
    why = door.told(Abort)[0]
    assert isinstance(why, Abort)
    assert "figures stand still" in why.why
    door.check_over()


def test_one_that_does_not_answer_its_metrics_either_is_found_by_its_streams() -> None:
    door = Door()
    busy(door)
    door.working.discard("e1")
    door.reads.discard("e1")
    door.pass_(12.0)
    assert door.running("e1") == []
    door.check_over()


def test_an_engine_without_metrics_is_found_by_all_of_its_streams_together() -> None:
    door = Door(instances=0)
    for name in ("e0", "e1"):
        door.join(name, reads=False)
    busy(door)
    door.working.discard("e1")
    door.pass_(12.0)
    assert door.running("e1") == []
    door.check_over()


def test_a_lone_stream_of_an_engine_without_metrics_says_nothing() -> None:
    """It may hold back a tool call until that is whole."""
    door = Door(instances=0)
    for name in ("e0", "e1"):
        door.join(name, reads=False)
    busy(door, requests=2)
    door.working.discard("e1")
    door.pass_(60.0)
    assert len(door.running("e1")) == 1
    door.check_over()


def test_answers_that_are_not_streamed_are_begun_anew_where_the_figures_stand_still() -> None:
    door = Door()
    busy(door)
    for attempt in list(door.on):
        door.end(attempt, Outcome.DONE, 200)
    for _ in range(4):
        door.ask(stream=False)
    door.pass_(3.0, tokens=False)
    door.working.discard("e1")
    door.pass_(12.0, tokens=False)
    assert door.running("e1") == []
    assert len(door.running("e0")) == 4
    door.check_over()


def test_answers_that_are_not_streamed_may_take_long_while_figures_move() -> None:
    door = Door()
    busy(door)
    for attempt in list(door.on):
        door.end(attempt, Outcome.DONE, 200)
    for _ in range(4):
        door.ask(stream=False)
    door.pass_(90.0, tokens=False)
    assert [len(door.running(name)) for name in ("e0", "e1")] == [2, 2]
    door.check_over()


def test_a_long_prompt_is_not_taken_for_a_hang() -> None:
    """85,000 tokens on an engine that gives nobody a token meanwhile and tells no figure: 16 s for an 8B on an A100."""
    door = Door()
    busy(door)
    long = door.ask(prompt_tokens=85_000)
    name = next(command.instance for command in door.on.values() if command.request == long)
    door.working.discard(name)
    door.pass_(25.0)
    assert door.state(name) == "ready"
    assert door.told(Abort) == []
    door.working.add(name)
    door.pass_(5.0)
    door.check_over()


def test_a_long_prompt_on_an_engine_that_does_hang_is_moved_before_the_fixed_limits() -> None:
    door = Door()
    busy(door)
    long = door.ask(prompt_tokens=30_000)
    name = next(command.instance for command in door.on.values() if command.request == long)
    door.working.discard(name)
    door.pass_(45.0)
    assert door.running(name) == []
    door.check_over()


@pytest.mark.parametrize("instances", [1, 2])
def test_a_pause_of_five_seconds_moves_nothing(instances: int) -> None:
    """A kernel that is compiled, a page that is swapped in."""
    door = Door(instances=instances)
    busy(door)
    for _ in range(5):
        door.working.discard("e0")
        door.pass_(5.0)
        door.working.add("e0")
        door.pass_(5.0)
    assert door.told(Abort) == []
    assert door.state("e0") == "ready"
    door.check_over()


def test_a_lone_instance_is_waited_for() -> None:
    door = Door(instances=1)
    busy(door)
    door.working.discard("e0")
    door.pass_(60.0)
    assert door.told(Abort) == []
    assert door.state("e0") == "ready"
    door.check_over()


def test_when_all_fall_silent_together_nobody_is_blamed() -> None:
    door = Door(instances=3)
    busy(door, requests=9)
    door.working.clear()
    door.pass_(60.0)
    assert door.told(Abort) == []
    assert {view.state for view in door.cluster.instances()} == {"ready"}
    door.check_over()


def test_when_we_have_slept_ourselves_nobody_is_blamed() -> None:
    """The process was stopped for half a minute: the first thing that it does is to look, before it has read a byte."""
    door = Door()
    busy(door)
    door.now += 30 * SECOND
    door.working.clear()
    door.pass_(2.0)
    door.working |= {"e0", "e1"}
    door.pass_(5.0)
    assert door.told(Abort) == []
    door.check_over()


@pytest.mark.parametrize("factor", [3, 10])
def test_a_slow_instance_is_slow_and_not_hung(factor: int) -> None:
    """Its tokens come all the same: one step of fifty milliseconds takes half a second."""
    door = Door()
    busy(door)
    door.working.discard("e1")
    for _ in range(600 // factor):
        door.pass_(0.05 * (factor - 1))
        door.working.add("e1")
        door.pass_(0.05)
        door.working.discard("e1")
    assert door.told(Abort) == []
    assert door.state("e1") == "ready"
    door.working.add("e1")
    door.check_over()


def test_a_sign_of_work_brings_it_back_at_once_and_heartbeats_alone_do_not() -> None:
    door = Door()
    busy(door)
    door.working.discard("e1")
    door.pass_(12.0)
    assert door.state("e1") == "ejected"
    door.pass_(10.0)
    assert door.state("e1") == "ejected", "its figures are still what they were"
    door.working.add("e1")
    door.pass_(1.0)
    assert door.state("e1") == "probing"
    door.ask()
    door.ask()
    (trial,) = door.running("e1")
    door.pass_(1.0)
    door.end(trial, Outcome.DONE, 200)
    assert door.state("e1") == "ready"
    door.check_over()


def test_it_can_be_turned_off() -> None:
    door = Door(Settings(policy="round-robin", silence_s=None))
    busy(door)
    door.working.discard("e1")
    door.pass_(60.0)
    assert door.told(Abort) == []
    door.check_over()


def test_streams_that_cannot_go_on_elsewhere_are_left_where_they_are() -> None:
    """They may still come to an end there; the driver leaves alone what cannot be moved."""
    door = Door()
    busy(door)
    door.working.discard("e1")
    door.pass_(12.0)
    aborts = [command for command in door.told(Abort) if isinstance(command, Abort)]
    assert len(aborts) == 4
    assert all(command.if_movable for command in aborts)


def test_what_a_new_brain_takes_over_is_silent_from_then_on_and_not_since_it_was_sent() -> None:
    door = Door()
    door.now += 300 * SECOND
    door.working.clear()
    for attempt in range(4):
        request = Request(id=f"old{attempt}", model="m", path="/v1/completions", stream=True)
        door.feed(
            Adopted(
                request=request, attempt=attempt, instance="e1", ordinal=1, relay=1, epoch=0,
                arrived_at=SECOND, dispatched_at=SECOND, first_token_at=2 * SECOND, output_tokens=500,
            )
        )  # fmt: skip
    door.pass_(5.0)
    assert door.told(Abort) == []
    assert door.state("e1") == "ready"
    door.pass_(50.0)
    assert len(door.told(Abort)) == 4, "though it is a hang if nothing comes"
