"""Figures: percentiles by hand, failures charged, goodput over offered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.loadgen.calls import Result
from isochrone.loadgen.report import Objective, figures, median, percentile


def served(ttft_s: float, e2e_s: float, tokens: int = 11, instance: str = "a", **more: int) -> Result:
    return Result(
        "chat",
        True,
        100.0,
        sent_at=100.0,
        first_byte_at=100.0,
        first_token_at=100.0 + ttft_s,
        last_token_at=100.0 + e2e_s,
        ended_at=100.0 + e2e_s,
        status=200,
        tokens=tokens,
        instance=instance,
        **more,
    )


def failed(error: str = "http", status: int = 503) -> Result:
    return Result("chat", True, 100.0, ended_at=100.1, status=status, error=error)


CHAT = {"chat": Objective(ttft_s=1.0, tpot_s=0.1)}


def test_percentile_is_nearest_rank() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert percentile(values, 0.5) == 50.0
    assert percentile(values, 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1))
def test_percentile_covers_its_share(values: list[float], share: float) -> None:
    bound = percentile(values, share)
    assert bound in values
    assert sum(value <= bound for value in values) >= share * len(values) * (1 - 1e-12)


def test_goodput_counts_ttft_and_tpot() -> None:
    late_first = served(1.5, 2.0)
    slow = served(0.5, 3.0)
    good = served(0.5, 1.0)
    assert figures([late_first, slow, good, failed()], CHAT, 60.0).goodput_ratio == 0.25


def test_failures_cost_the_whole_limit() -> None:
    result = figures([served(0.1, 0.2)] * 98 + [failed(), failed("closed", 0)], CHAT, 60.0)
    assert result.served_ratio == 0.98
    assert result.ttft_p99_s == result.e2e_p99_s == 60.0
    assert result.ttft_p50_s == pytest.approx(0.1)
    assert result.errors == {"http 503": 1, "closed": 1}


def test_cache_and_instances() -> None:
    results = [
        served(0.1, 0.2, prompt_tokens=100, cached_tokens=64),
        served(0.1, 0.2, instance="b", prompt_tokens=100),
    ]
    result = figures(results, CHAT, 60.0)
    assert result.cache_hit_ratio == pytest.approx(0.32)
    assert result.requests_per_instance == {"a": 1, "b": 1}


def test_tpot_is_the_mean_gap() -> None:
    assert served(0.5, 1.5, tokens=11).tpot_s == pytest.approx(0.1)
    assert served(0.5, 1.5, tokens=1).tpot_s is None


def test_nothing_offered_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing was offered"):
        figures([], CHAT, 60.0)


def test_median_over_rounds() -> None:
    rounds = [
        figures([served(ttft, 2.0, instance=name)], CHAT, 60.0) for ttft, name in ((0.1, "a"), (0.3, "a"), (0.2, "b"))
    ]
    middle = median(rounds)
    assert middle.ttft_p99_s == pytest.approx(0.2)
    assert middle.requests_per_instance == {"a": 1.0, "b": 0.0}
