"""The life of an instance, told as stories."""

import pytest

from isochrone.instances.lifecycle import Life
from isochrone.nouns.instance import State
from isochrone.nouns.settings import Settings

SETTINGS = Settings(
    heartbeat_suspect_misses=1,
    heartbeat_eject_misses=3,
    heartbeat_ready_answers=2,
    failures_suspect=2,
    failures_eject=5,
)


def ready() -> Life:
    life = Life()
    assert life.probed(True, SETTINGS) is State.READY
    return life


def answers(life: Life, count: int) -> list[State | None]:
    return [life.probed(True, SETTINGS) for _ in range(count)]


def misses(life: Life, count: int) -> list[State | None]:
    return [life.probed(False, SETTINGS) for _ in range(count)]


def failures(life: Life, count: int, attempt: int | None = None) -> list[State | None]:
    return [life.attempt_failed(SETTINGS, attempt) for _ in range(count)]


def ejected_by_requests() -> Life:
    life = ready()
    failures(life, 5)
    assert life.state is State.EJECTED
    return life


def test_an_instance_joins_with_its_first_answer() -> None:
    life = Life()
    assert not life.placeable
    assert misses(life, 20) == [None] * 20
    assert life.state is State.JOINING
    assert life.probed(True, SETTINGS) is State.READY
    assert life.placeable


def test_misses_make_it_suspect_then_eject_it_and_answers_bring_it_back() -> None:
    life = ready()
    assert misses(life, 3) == [State.SUSPECT, None, State.EJECTED]
    assert answers(life, 3) == [State.PROBING, State.READY, None]


def test_a_suspect_by_misses_is_ready_with_the_next_answer() -> None:
    life = ready()
    misses(life, 2)
    assert life.last_resort
    assert not life.placeable
    assert life.probed(True, SETTINGS) is State.READY


def test_a_busy_engine_that_misses_heartbeats_stays_while_tokens_flow() -> None:
    life = ready()
    assert [life.probed(False, SETTINGS, alive=True) for _ in range(50)] == [None] * 50
    assert life.placeable


def test_a_probing_instance_that_misses_goes_back() -> None:
    life = ready()
    misses(life, 3)
    answers(life, 1)
    assert misses(life, 1) == [State.EJECTED]


def test_failing_requests_count_only_in_a_row() -> None:
    life = ready()
    for _ in range(20):
        assert failures(life, 1) == [None]
        assert life.attempt_succeeded() is None
    assert life.placeable


def test_failing_requests_make_it_suspect_then_eject_it() -> None:
    life = ready()
    assert failures(life, 5) == [None, State.SUSPECT, None, None, State.EJECTED]


def test_client_mistakes_and_busy_never_count() -> None:
    life = ready()
    for attempt in range(50):
        assert life.dispatched(attempt) is None
        assert life.attempt_ended(attempt) is None
    assert life.state is State.READY
    assert life.failures == 0


def test_good_heartbeats_alone_do_not_bring_back_what_fails_requests() -> None:
    """`/health` is 200 while every generation fails."""
    life = ejected_by_requests()
    assert answers(life, 100) == [State.PROBING] + [None] * 99


def test_a_trial_that_succeeds_brings_it_back() -> None:
    life = ejected_by_requests()
    answers(life, 1)
    assert life.placeable
    assert life.dispatched(7) is State.PROBING
    assert not life.placeable
    assert life.dispatched(8) is None
    assert life.attempt_succeeded(7) is State.READY
    assert life.placeable
    assert not life.unproven


def test_a_trial_that_fails_ejects_for_longer_each_time() -> None:
    """Few trials: after 1, 2, 4, 8, 16, 16, ... heartbeats."""
    life = ejected_by_requests()
    rests = []
    for attempt in range(7):
        heartbeats = 0
        while life.state is State.EJECTED:
            heartbeats += 1
            life.probed(True, SETTINGS)
        rests.append(heartbeats)
        assert life.dispatched(attempt) is State.PROBING
        assert life.attempt_failed(SETTINGS, attempt) is State.EJECTED
    assert rests == [1, 2, 4, 8, 16, 16, 16]


def test_steady_successes_wipe_out_past_ejections() -> None:
    life = ejected_by_requests()
    answers(life, 1)
    life.attempt_succeeded()
    for _ in range(16):
        life.attempt_succeeded()
    failures(life, 5)
    assert answers(life, 1) == [State.PROBING]


def test_without_steady_successes_the_rest_grows() -> None:
    life = ejected_by_requests()
    answers(life, 1)
    life.attempt_succeeded()
    failures(life, 5)
    assert answers(life, 2) == [None, State.PROBING]


def test_a_trial_that_says_nothing_frees_its_place() -> None:
    life = ejected_by_requests()
    answers(life, 1)
    life.dispatched(7)
    assert life.attempt_ended(7) is State.PROBING
    assert life.placeable


def test_late_failures_from_before_the_ejection_do_not_spoil_the_trial() -> None:
    life = ejected_by_requests()
    answers(life, 1)
    life.dispatched(7)
    assert failures(life, 3, attempt=2) == [None] * 3
    assert life.state is State.PROBING
    assert life.attempt_succeeded(7) is State.READY


def test_a_suspect_by_requests_gets_one_trial_after_each_good_heartbeat() -> None:
    life = ready()
    failures(life, 2)
    assert (life.last_resort, life.placeable) == (True, False)
    assert life.probed(True, SETTINGS) is State.SUSPECT
    assert life.placeable
    assert life.dispatched(7) is State.SUSPECT
    assert not life.placeable
    assert life.probed(True, SETTINGS) is None
    assert life.attempt_failed(SETTINGS, 7) is State.SUSPECT
    assert life.dispatched(8) is State.SUSPECT
    assert life.attempt_succeeded(8) is State.READY


def test_a_heartbeat_during_a_suspect_s_trial_makes_the_next_one_due() -> None:
    life = ready()
    failures(life, 2)
    answers(life, 1)
    life.dispatched(7)
    assert answers(life, 1) == [None]
    assert life.attempt_failed(SETTINGS, 7) is State.SUSPECT
    assert life.placeable


def test_each_time_out_begins_anew() -> None:
    """Neither an old trial, nor one that was due, nor old failures outlive a change of state."""
    life = ready()
    failures(life, 2)
    answers(life, 1)
    life.attempt_succeeded()
    misses(life, 1)
    assert not life.placeable
    failures(life, 1)
    misses(life, 2)
    answers(life, 1)
    life.dispatched(7)
    misses(life, 1)
    answers(life, 2)
    assert life.state is State.PROBING
    assert life.placeable
    answers(life, 1)
    assert failures(life, 1) == [None]


def test_news_of_the_dead_is_ignored() -> None:
    life = ready()
    misses(life, 3)
    assert life.attempt_succeeded(1) is None
    assert failures(life, 9, attempt=2) == [None] * 9
    assert life.state is State.EJECTED
    assert not life.unproven


def test_when_all_heartbeats_time_out_but_none_is_refused_it_may_be_busy() -> None:
    busy, dead, failing = ready(), ready(), ejected_by_requests()
    misses(busy, 3)
    for _ in range(3):
        dead.probed(False, SETTINGS, refused=True)
    assert busy.fail_open
    assert not dead.fail_open
    assert not failing.fail_open
    assert not ready().fail_open


@pytest.mark.parametrize(
    ("before", "after"),
    [("ready", State.READY), ("joining", State.JOINING), ("missed", State.JOINING), ("failing", State.PROBING)],
)
def test_drain_and_back(before: str, after: State) -> None:
    life = {"ready": ready, "joining": Life, "missed": ready, "failing": ejected_by_requests}[before]()
    if before == "missed":
        misses(life, 3)
    assert life.drain() is State.DRAINING
    assert life.drain() is None
    assert not life.placeable
    assert not life.last_resort
    assert life.undrain() is after
    assert life.undrain() is None


def test_an_instance_that_died_while_draining_does_not_come_back_ready() -> None:
    life = ready()
    life.drain()
    assert misses(life, 9) == [None] * 9
    assert life.undrain() is State.JOINING


def test_withdrawn_is_for_good() -> None:
    life = ready()
    assert life.withdraw() is State.GONE
    assert life.withdraw() is None
    assert life.drain() is None
    assert life.undrain() is None
    assert answers(life, 3) == [None] * 3
    assert life.attempt_succeeded() is None
    assert not life.placeable
