"""Whatever has been observed, curves fall, means grow with their bound, and parts add up."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from isochrone.scheduling.lengths import EDGES, OutputLengths

tokens_of = st.one_of(st.integers(0, 200_000), st.sampled_from([int(edge) for edge in EDGES]))
answers_of = st.lists(st.tuples(tokens_of, st.booleans(), st.integers(0, 10**14)), max_size=80)


def learnt(answers: list[tuple[int, bool, int]]) -> OutputLengths:
    lengths = OutputLengths()
    for tokens, censored, now in answers:
        lengths.observe("m", "r", tokens, censored, now)
    return lengths


@given(answers_of, tokens_of, tokens_of)
def test_means(answers: list[tuple[int, bool, int]], one: int, other: int) -> None:
    lengths, (small, large) = learnt(answers), sorted((one, other))
    up_to_small, up_to_large = lengths.mean("m", "r", small), lengths.mean("m", "r", large)
    assert 0.0 <= up_to_small <= small + 1e-9
    assert up_to_small <= up_to_large + 1e-9
    assert up_to_large <= lengths.mean("m", "r") + 1e-6 * large + 1e-9
    left = lengths.remaining("m", "r", small, large)
    assert 0.0 <= left <= large - small + 1e-9


@given(answers_of, tokens_of, st.lists(st.floats(0.0, 0.999), min_size=2, max_size=8))
def test_quantiles_rise(answers: list[tuple[int, bool, int]], so_far: int, qs: list[float]) -> None:
    left = learnt(answers).quantiles("m", "r", sorted(qs), so_far)
    assert all(tokens >= 0.0 for tokens in left)
    assert all(a <= b + 1e-6 * (1.0 + a) for a, b in pairwise(left))


@given(answers_of)
def test_what_was_learnt_comes_back(answers: list[tuple[int, bool, int]]) -> None:
    lengths, again = learnt(answers), OutputLengths()
    assert again.restore(lengths.learned())
    for model in ("m", "other"):
        assert abs(again.mean(model, "r", 500) - lengths.mean(model, "r", 500)) < 60.0
