"""Counters over restarts of the engine (M-02)."""

from hypothesis import given
from hypothesis import strategies as st

from isochrone.observe.counters import CounterWindow, mean_of


def test_reset_begins_a_new_window() -> None:
    window = CounterWindow()
    assert mean_of(window.advance({"sum": 10, "count": 5}), "sum", "count") is None, "nothing to compare with"
    assert mean_of(window.advance({"sum": 9, "count": 2}), "sum", "count") == 4.5, "all counted since the reset"
    assert window.resets == 1
    assert mean_of(window.advance({"sum": 9, "count": 2}), "sum", "count") is None, "nothing new"
    assert mean_of(window.advance({"sum": 12, "count": 3}), "sum", "count") == 3.0
    assert window.resets == 1


def test_reset_that_has_overtaken_the_old_value_is_seen_by_the_start_time() -> None:
    window = CounterWindow()
    window.advance({"count": 5}, started_at_unix_s=100.0)
    assert window.advance({"count": 9}, started_at_unix_s=200.0) == {"count": 9}
    assert window.advance({"count": 10}, started_at_unix_s=150.0) == {"count": 1}, "another process of the same engine"
    assert window.resets == 1


def test_missing_counter_keeps_its_value() -> None:
    window = CounterWindow()
    window.advance({"a": 5, "b": 1})
    assert window.advance({"a": None, "b": 2}) == {"b": 1}
    assert window.advance({"a": 7, "b": 2}) == {"a": 2, "b": 0}


@given(st.lists(st.lists(st.integers(0, 100), min_size=1, max_size=10), min_size=1, max_size=6))
def test_gains_add_up_to_all_that_was_counted(lives: list[list[int]]) -> None:
    """Each inner list: increments of one life of the engine. Only what came before the first reading is not seen."""
    window = CounterWindow()
    gained = 0.0
    for life in lives:
        count = 1  # a life begins with something counted, so that its first reading is below the last of the one before
        for step in life:
            count += step
            gained += window.advance({"count": count}, started_at_unix_s=None).get("count", 0.0)
    assert 0 <= gained <= sum(sum(life) + 1 for life in lives)
