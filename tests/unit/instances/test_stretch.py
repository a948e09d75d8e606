"""How much prefill lengthens the gaps between tokens."""

import pytest

from isochrone.instances.stretch import FACTOR_MAX, MEMORY_S, PLAIN_S, Stretch


def test_an_engine_that_only_decodes_has_none() -> None:
    stretch = Stretch()
    for _ in range(5):
        stretch.observe(0.5, 0.5, 0.1)
    assert stretch.factor == pytest.approx(1.0)


def test_windows_count_by_their_length() -> None:
    stretch = Stretch()
    stretch.observe(60.0, 20.0, 0.0)
    stretch.observe(20.0, 20.0, 0.0)
    assert stretch.factor == pytest.approx((80.0 + PLAIN_S) / (40.0 + PLAIN_S))


def test_it_forgets() -> None:
    stretch = Stretch()
    stretch.observe(50.0, 1.0, 0.0)
    for _ in range(100):
        stretch.observe(0.1, 0.1, 1.0)
    assert stretch.factor == pytest.approx(1.0, abs=1e-2)
    assert 5 * MEMORY_S < 100.0


def test_it_stays_between_sane_bounds() -> None:
    stretch = Stretch()
    stretch.observe(0.1, 1.0, 0.0)
    assert stretch.factor == 1.0
    stretch.observe(1e6, 1.0, 1.0)
    assert stretch.factor == FACTOR_MAX
