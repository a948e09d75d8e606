"""Whatever comes in, the step-time model stays finite, positive and restorable."""

import math

from hypothesis import given
from hypothesis import strategies as st

from isochrone.instances.steptime import Level, StepTimeModel

part = st.one_of(st.just(0.0), st.floats(0.0, 1e12), st.floats(0.5, 100.0), st.sampled_from([-1.0, math.nan, math.inf]))
sample_of = st.tuples(
    st.tuples(part, part, part, part),
    st.one_of(st.floats(1e-6, 100.0), st.sampled_from([0.0, -1.0, math.nan, math.inf, 1e-300, 3600.0])),
    st.floats(-4.6, 4.6),
    st.one_of(st.just(1.0), st.floats(0.0, 10.0)),
)


@given(st.lists(sample_of, max_size=120))
def test_nothing_breaks_it(
    samples: list[tuple[tuple[float, float, float, float], float, float, float]],
) -> None:
    model, own = StepTimeModel(), Level()
    for x, elapsed_s, level, weight in samples:
        before = model.samples
        residual = model.observe(x, elapsed_s, level, weight)
        if residual is None:
            assert model.samples == before
        else:
            assert math.isfinite(residual)
            own.observe(residual, 1 / 8)
        assert all(0.0 < value < math.inf for value in model.coefficients)
        assert 0.0 < model.sigma < math.inf
        assert 0.01 <= own.factor <= 100.0001
    again = StepTimeModel()
    assert again.restore(model.learned())
    assert again.coefficients == model.coefficients
