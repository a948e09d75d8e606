"""What the ledger says went on around a stream."""

import pytest

from isochrone.instances.ledger import Flight, Ledger
from isochrone.nouns.instant import MILLISECOND, SECOND


def flight(attempt: int, prompt_tokens: int, uncached_tokens: int, work_ns: int = SECOND) -> Flight:
    return Flight(
        attempt=attempt,
        request=f"r{attempt}",
        slot=0,
        incarnation=0,
        ordinal=1,
        dispatched_at=0,
        prompt_tokens=prompt_tokens,
        uncached_tokens=uncached_tokens,
        work_ns=work_ns,
        expected_output=100,
    )


def decoding(ledger: Ledger, attempt: int, now: int, prompt_tokens: int = 1000) -> Flight:
    one = flight(attempt, prompt_tokens, prompt_tokens)
    ledger.enter(one, now)
    ledger.first_token(one, now)
    return one


def test_batch_and_context_are_means_over_time() -> None:
    """Alone for a second, then three seconds with one that came and one that left."""
    ledger = Ledger()
    stream = decoding(ledger, 1, 10 * SECOND)
    other = decoding(ledger, 2, 11 * SECOND, prompt_tokens=500)
    ledger.leave(other, 13 * SECOND)
    window = ledger.window(stream, 14 * SECOND)
    assert window.span_ns == 4 * SECOND
    assert window.batch == pytest.approx((1 + 2 + 2 + 1) / 4)
    assert window.context == pytest.approx(1001 + 501 * 2 / 4)


def test_prefill_counts_where_it_happens_not_where_it_ends() -> None:
    """A prompt of four seconds' work, seen in two windows: a quarter in the first, three in the second."""
    ledger = Ledger()
    stream = decoding(ledger, 1, 0)
    long = flight(2, 10_000, 8_000, work_ns=4 * SECOND)
    ledger.enter(long, 0)
    first = ledger.window(stream, SECOND)
    assert first.prefilled_tokens == pytest.approx(2000)
    assert first.prefilled_pairs == pytest.approx(2000 * (2000 + 1000))
    ledger.begin_window(stream, SECOND)
    ledger.first_token(long, 4 * SECOND)
    second = ledger.window(stream, 4 * SECOND)
    assert second.prefilled_tokens == pytest.approx(6000)
    assert first.prefilled_pairs + second.prefilled_pairs == pytest.approx(long.pairs)
    assert long.pairs == 8000 * (2000 + 4000)


def test_a_head_that_is_late_counts_once() -> None:
    ledger = Ledger()
    stream = decoding(ledger, 1, 0)
    late = flight(2, 1000, 1000, work_ns=100 * MILLISECOND)
    ledger.enter(late, 0)
    assert ledger.window(stream, 9 * SECOND).prefilled_tokens == 1000
    ledger.begin_window(stream, 9 * SECOND)
    ledger.first_token(late, 10 * SECOND)
    assert ledger.window(stream, 10 * SECOND).prefilled_tokens == 0


def test_what_is_ahead_is_what_waits_less_what_the_head_has_had_done() -> None:
    ledger = Ledger()
    assert ledger.ahead(0) == (0, 0)
    head, second = flight(1, 4000, 4000), flight(2, 3000, 1000)
    ledger.enter(head, 0)
    ledger.enter(second, 0)
    assert ledger.ahead(0) == (5000, head.pairs + second.pairs)
    tokens, pairs = ledger.ahead(SECOND // 4)
    assert tokens == 4000
    assert pairs == head.pairs + second.pairs - 1000 * 500
    assert ledger.ahead(100 * SECOND) == (1000, second.pairs)


def test_an_attempt_that_leaves_in_mid_prefill_takes_nothing_away_from_windows() -> None:
    ledger = Ledger()
    stream = decoding(ledger, 1, 0)
    gone = flight(2, 1000, 1000)
    ledger.enter(gone, 0)
    ledger.begin_window(stream, SECOND // 2)
    ledger.leave(gone, SECOND // 2)
    window = ledger.window(stream, SECOND)
    assert window.prefilled_tokens == 0
    assert window.prefilled_pairs == 0
    ledger.leave(stream, SECOND)
    assert ledger.is_zero()
