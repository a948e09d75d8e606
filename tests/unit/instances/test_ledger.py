"""The ledger: what goes in comes out."""

import random

from hypothesis import given
from hypothesis import strategies as st

from isochrone.instances.ledger import Ledger
from isochrone.nouns.instant import SECOND
from tests.support.rows import flight


def test_pending_work_counts_from_the_choice_until_the_first_token() -> None:
    ledger = Ledger()
    one, two = flight(1, 1000, 0, work_s=2.0), flight(2, 500, 0, work_s=1.0)
    ledger.enter(one, 0)
    ledger.enter(two, 0)
    assert ledger.pending_s(0) == 3.0
    assert ledger.pending_s(SECOND) == 2.0, "the head has had a second"
    assert ledger.pending_s(9 * SECOND) == 1.0, "never less than what stands behind it"
    ledger.first_token(one, 4 * SECOND)
    assert ledger.pending_s(4 * SECOND) == 1.0
    ledger.leave(two, 4 * SECOND)
    assert ledger.pending_s(4 * SECOND) == 0.0
    assert not ledger.is_zero()
    ledger.leave(one, 5 * SECOND)
    assert ledger.is_zero()


def test_output_pays_off_what_was_owed_and_no_more() -> None:
    ledger = Ledger()
    one = flight(1, 10, 0, output=40)
    ledger.enter(one, 0)
    ledger.first_token(one, 1)
    ledger.progress(one, 33)
    assert (ledger.owed_tokens, ledger.context_tokens, ledger.kv_tokens) == (7, 43, 43)
    ledger.progress(one, 20)
    assert one.output_tokens == 33, "late news does not turn output back"
    ledger.progress(one, 100)
    assert ledger.owed_tokens == 0


@given(st.integers(0, 10_000), st.integers(1, 60))
def test_returns_to_zero_in_any_order_of_ends(seed: int, count: int) -> None:
    chance = random.Random(seed)
    ledger, live, now = Ledger(), [], 0
    for number in range(count):
        now += chance.randrange(SECOND)
        one = flight(number, chance.randrange(1, 9000), now, output=chance.randrange(500))
        ledger.enter(one, now)
        live.append(one)
        for other in list(live):
            roll = chance.random()
            if roll < 0.2 and not other.decoding:
                ledger.first_token(other, now)
            elif roll < 0.4:
                ledger.progress(other, other.output_tokens + chance.randrange(64))
            elif roll < 0.6:
                ledger.leave(other, now)
                live.remove(other)
        assert ledger.pending_s(now) >= 0
        assert ledger.in_flight == len(live)
    for other in live:
        ledger.leave(other, now)
    assert ledger.is_zero()
