"""The moving share of failed attempts."""

import pytest

from isochrone.instances.failures import HALF_LIFE_NS, TRIES_MAX, FailureRate
from isochrone.nouns.instant import SECOND


def test_nothing_failed_means_one_try() -> None:
    rate = FailureRate()
    for second in range(100):
        rate.observe(False, second * SECOND)
    assert rate.tries(100 * SECOND) == 1.0


def test_a_share_of_failures_is_followed() -> None:
    rate = FailureRate()
    for number in range(2000):
        rate.observe(number % 4 == 0, number)
    assert rate.now(2000) == pytest.approx(0.25, abs=0.04)
    assert rate.tries(2000) == pytest.approx(4 / 3, abs=0.08)


def test_it_halves_by_itself_and_ends_at_nothing() -> None:
    rate = FailureRate()
    for number in range(100):
        rate.observe(True, number)
    assert rate.tries(100) == pytest.approx(TRIES_MAX)
    assert rate.now(100 + 2 * HALF_LIFE_NS) == pytest.approx(rate.rate / 4, rel=1e-6)
    assert rate.tries(100 + 20 * HALF_LIFE_NS) == 1.0
