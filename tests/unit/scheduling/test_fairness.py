"""Virtual token counters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.scheduling.fairness import Fairness


def test_service_is_counted_in_weighted_tokens() -> None:
    fairness = Fairness()
    fairness.arrived("a")
    fairness.charge("a", 100, 30)
    assert fairness.counter("a") == 160
    fairness.charge("a", 0, -20)
    assert fairness.counter("a") == 120


def test_a_pause_earns_no_credit() -> None:
    fairness = Fairness()
    fairness.arrived("a")
    fairness.arrived("b")
    fairness.charge("a", 1000, 0)
    fairness.charge("b", 600, 0)
    fairness.arrived("late")
    assert fairness.counter("late") == 600
    fairness.left("b")
    fairness.charge("a", 1000, 0)
    fairness.charge("late", 1400, 0)
    fairness.arrived("b")
    assert fairness.counter("b") == 2000


def test_who_was_served_more_keeps_that_over_a_pause() -> None:
    fairness = Fairness()
    fairness.arrived("a")
    fairness.arrived("b")
    fairness.charge("b", 5000, 0)
    fairness.left("b")
    fairness.arrived("b")
    assert fairness.counter("b") == 5000


def test_tenants_are_bounded_and_the_active_ones_are_kept() -> None:
    fairness = Fairness(tenants_max=3)
    fairness.arrived("stays")
    fairness.charge("stays", 10, 0)
    for number in range(20):
        fairness.arrived(f"t{number}")
        fairness.left(f"t{number}")
    assert fairness.tenants == 3
    assert fairness.counter("stays") == 10


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3), st.integers(1, 500)), max_size=80))
def test_counters_never_fall_behind_the_least_active_one(steps: list[tuple[str, int, int]]) -> None:
    """Whoever wakes is lifted; active counts return to zero; a forgotten line is nobody's."""
    fairness = Fairness(tenants_max=4)
    running: dict[str, int] = {}
    for tenant, what, tokens in steps:
        if what == 0 and running.get(tenant):
            running[tenant] -= 1
            fairness.left(tenant)
        elif what == 1 and running.get(tenant):
            fairness.charge(tenant, tokens, 0)
        else:
            others = [fairness.counter(other) for other, count in running.items() if count and other != tenant]
            woke = not running.get(tenant)
            fairness.arrived(tenant)
            running[tenant] = running.get(tenant, 0) + 1
            if woke and others:
                assert fairness.counter(tenant) >= min(others)
        assert fairness.active == sum(count > 0 for count in running.values())
        lines = [fairness.line(one) for one, count in running.items() if count]
        assert len(set(lines)) == len(lines)
    for tenant, count in running.items():
        for _ in range(count):
            fairness.left(tenant)
    assert fairness.active == 0


def test_a_tenant_that_was_never_seen_has_no_counter() -> None:
    with pytest.raises(KeyError):
        Fairness().counter("nobody")
