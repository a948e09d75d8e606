"""Hedging at the cluster's door: e0 is asked first and does not answer in time."""

import pytest

from isochrone.nouns.commands import Abort, Dispatch, Record
from isochrone.nouns.decision import Decision
from isochrone.nouns.events import ClientLeft, FirstToken, Outcome, Withdrawn
from isochrone.nouns.instant import SECOND
from isochrone.nouns.settings import Settings
from isochrone.scheduling.hedges import Hedges, Lateness
from tests.support.fleet_door import Door

SETTINGS = Settings(policy="round-robin", hedge_ratio=0.02, samples_warm=0)


def saved_up(settings: Settings = SETTINGS, instances: int = 2) -> Door:
    """After enough quick requests that a second one may be asked for, or several."""
    door = Door(settings, instances)
    for _ in range(200):
        door.ask()
        door.pass_(0.05)
        door.end(max(door.on), Outcome.DONE, 200)
    assert door.cluster._world.hedges.asked == 0
    return door


def hedged(door: Door) -> tuple[int, int]:
    """A request whose first token is late; its two attempts."""
    door.working.clear()
    before = len(door.told(Dispatch))
    door.ask()
    door.pass_(3.0)
    first, second = (one for one in door.told(Dispatch)[before:] if isinstance(one, Dispatch))
    assert (first.hedge, second.hedge) == (False, True)
    assert first.instance != second.instance
    assert (first.request, first.ordinal, second.ordinal) == (second.request, 1, 2)
    return first.attempt, second.attempt


def record(door: Door) -> Decision:
    last = door.told(Record)[-1]
    assert isinstance(last, Record)
    return last.decision


@pytest.mark.parametrize("winner", [0, 1])
def test_the_first_of_two_is_the_answer_and_the_other_is_ended(winner: int) -> None:
    door = saved_up()
    both = hedged(door)
    where = door.on[both[winner]].instance
    door.tokens[both[winner]] = 1
    door.feed(FirstToken(both[winner]))
    assert list(door.on) == [both[winner]], "the loser is aborted at once"
    assert len(door.cluster._world.flights) == 1
    door.end(both[winner], Outcome.DONE, 200)
    decision = record(door)
    assert (decision.outcome, decision.winner) == ("done", where)
    assert [one.outcome for one in decision.tries] == [("done", "aborted")[index != winner] for index in (0, 1)]
    door.check_over()


@pytest.mark.parametrize("failing", [0, 1])
def test_where_one_of_two_fails_the_other_goes_on(failing: int) -> None:
    door = saved_up()
    both = hedged(door)
    door.end(both[failing], Outcome.FAILED, 500)
    other = both[1 - failing]
    assert list(door.on) == [other]
    assert door.failed() == []
    door.tokens[other] = 1
    door.feed(FirstToken(other))
    door.end(other, Outcome.DONE, 200)
    assert record(door).outcome == "done"
    door.check_over()


def test_where_both_fail_the_request_is_tried_once_more_and_then_fails() -> None:
    door = saved_up(instances=3)
    both = hedged(door)
    door.end(both[0], Outcome.FAILED, 500)
    door.end(both[1], Outcome.FAILED, 500)
    (third,) = door.on
    assert door.on[third].ordinal == 3
    door.end(third, Outcome.FAILED, 500)
    assert record(door).outcome == "failed"
    door.check_over()


def test_a_client_that_leaves_ends_both() -> None:
    door = saved_up()
    both = hedged(door)
    for command in door.cluster.handle(door.now, ClientLeft(door.on[both[0]].request)):
        assert isinstance(command, Abort)
        assert command.attempt in both
        door.end(command.attempt, Outcome.CLIENT_LEFT)
    assert not door.on
    assert record(door).outcome == "client_left"
    door.check_over()


def test_a_mistake_of_the_client_that_one_of_them_tells_ends_both() -> None:
    door = saved_up()
    both = hedged(door)
    door.end(both[1], Outcome.REJECTED, 400)
    assert not door.on
    assert record(door).outcome == "rejected"
    door.check_over()


def test_an_instance_that_is_removed_loses_its_half_only() -> None:
    door = saved_up()
    both = hedged(door)
    door.feed(Withdrawn(door.on[both[1]].instance, drain=False))
    assert list(door.on) == [both[0]]
    door.check_over()


def test_off_by_default_and_for_small_prompts_and_streams_only() -> None:
    for settings, fields in (
        (Settings(policy="round-robin", samples_warm=0), {}),
        (SETTINGS, {"prompt_tokens": 512}),
        (SETTINGS, {"stream": False}),
    ):
        door = saved_up(settings)
        door.working.clear()
        before = len(door.told(Dispatch))
        door.ask(**fields)  # type: ignore[arg-type]
        door.pass_(7.0)
        assert len(door.told(Dispatch)) == before + 1
        door.check_over()


def test_no_more_than_its_share_of_requests_is_asked_twice() -> None:
    """All are late: of 1,000 requests 2 % are hedged, and the few that were saved up."""
    door = saved_up(instances=4)
    for _ in range(1000):
        door.working.clear()
        door.ask()
        door.pass_(2.0)
        for attempt in list(door.on):
            door.tokens[attempt] = 1
        while door.on:
            door.end(min(door.on), Outcome.DONE, 200)
    assert 15 <= door.cluster._world.hedges.asked <= 20 + 10
    door.check_over()


def test_what_is_late_is_learnt() -> None:
    """First tokens that take up to twice their forecast: the latest 5 % take more than 1.9 times that."""
    lateness = Lateness()
    for number in range(4000):
        lateness.observe(1.0 + (number * 37 % 100) / 100, 1.0)
    assert 1.75 < lateness.factor < 2.05
    for _ in range(50):
        lateness.observe(0.0, 1.0)
    assert 1.75 < lateness.factor < 2.05


def test_a_late_moment_is_never_at_once() -> None:
    hedges = Hedges()
    hedges.sent(0, 1, 10, 1e-6, 0.02, True)
    assert hedges.due[0][0] == SECOND // 20
