"""What a relay tells a new brain of its requests."""

import pytest

from isochrone.gateway.workers.open import Open
from isochrone.nouns.commands import Dispatch, Limits
from isochrone.nouns.events import Ended, Outcome
from isochrone.nouns.instant import SECOND
from isochrone.nouns.request import Request


def request(limit_s: float | None = None) -> Request:
    return Request(id="r", model="m", path="/v1/chat/completions", limit_s=limit_s)


def progress(one: Open, attempt: int, output_tokens: int) -> None:
    """Its first token came at 7 s, and so many since."""
    found = one.find(attempt)
    assert found is not None
    found.first_token_at, found.output_tokens = 7 * SECOND, output_tokens


def test_an_attempt_is_told_as_it_stands() -> None:
    one = Open(request(), 5 * SECOND)
    one.sent(Dispatch("r", 7, "a", Limits()), 6 * SECOND, None)
    progress(one, 7, 3)
    told = one.adopted(1, 4)
    assert (told.request.model, told.attempt, told.instance, told.ordinal) == ("m", 7, "a", 1)
    assert (told.relay, told.epoch, told.arrived_at, told.dispatched_at) == (1, 4, 5 * SECOND, 6 * SECOND)
    assert (told.first_token_at, told.output_tokens, told.said_tokens) == (7 * SECOND, 3, None)


def test_a_further_attempt_begins_anew_and_may_ask_another_model() -> None:
    one = Open(request(), 5 * SECOND)
    one.sent(Dispatch("r", 7, "a", Limits()), 6 * SECOND, None)
    progress(one, 7, 3)
    one.ended(Ended(7, Outcome.LOST), 8 * SECOND)
    one.sent(Dispatch("r", 8, "b", Limits(), 2, True, model="other"), 8 * SECOND, 3)
    told = one.adopted(1, 4)
    assert (told.request.model, told.attempt, told.instance, told.ordinal) == ("other", 8, "b", 2)
    assert (told.first_token_at, told.output_tokens, told.said_tokens) == (None, 0, 3)
    assert one.request.model == "m"


@pytest.mark.parametrize("ended", [7, 8])
def test_of_two_attempts_the_one_that_is_left_is_told(ended: int) -> None:
    one = Open(request(), 5 * SECOND)
    one.sent(Dispatch("r", 7, "a", Limits()), 6 * SECOND, None)
    one.sent(Dispatch("r", 8, "b", Limits(), 2, hedge=True), 7 * SECOND, None)
    left = 15 - ended
    progress(one, left, 3)
    one.ended(Ended(ended, Outcome.ABORTED), 8 * SECOND)
    assert not one.waits
    told = one.adopted(1, 4)
    assert (told.attempt, told.ordinal, told.output_tokens) == (left, left - 6, 3)
    assert one.find(ended) is None
    one.ended(Ended(left, Outcome.LOST), 9 * SECOND)
    assert (one.waits, one.waits_since) == (True, 9 * SECOND)


@pytest.mark.parametrize(("limit_s", "left_s"), [(None, None), (10.0, 8.0), (1.0, 1e-3)])
def test_a_clients_own_limit_runs_on(limit_s: float | None, left_s: float | None) -> None:
    one = Open(request(limit_s), 5 * SECOND)
    told = one.arrived(1, 4, 7 * SECOND)
    assert told.request.limit_s == (pytest.approx(left_s) if left_s is not None else None)
    assert one.waits_s_max(5.0) == min(5.0, limit_s or 5.0)
