"""Series: what is counted, and that outsiders cannot make them grow (M-03)."""

import random

from isochrone.nouns.decision import Decision
from isochrone.observe.families import Family, families
from isochrone.observe.histogram import TTFT_S, Histogram
from isochrone.observe.series import OTHER, ROUTES_MAX, Series


def decision(outcome: str = "done", status: int = 200) -> Decision:
    return Decision(
        request="r",
        model="m",
        path="/v1/chat/completions",
        tenant="anonymous",
        route="chat",
        stream=True,
        policy="equal-cost",
        arrived_at=0,
        prompt_tokens_estimate=100,
        outcome=outcome,
        status=status,
    )


def serve_one(series: Series, model: str = "m", route: str = "chat", instance: str = "i", status: int = 200) -> None:
    series.arrived(model, route)
    series.queued(model, 1)
    series.queued(model, 0)
    series.dispatched(model, instance, 1, 0.02)
    series.first_token(model, route, instance, 0.3)
    series.attempt_ended(model, instance, "done")
    series.request_done(model, route, instance, decision(status=status), 2.0, 0.3, 0.05, 100, 35, 40)
    series.priced(model, {"wait": 0.5, "work": 0.25}, -0.2, 1.5)


def named(series: Series) -> dict[str, Family]:
    return {family.name: family for family in families(series)}


def value(series: Series, name: str, *labels: str) -> float:
    found = dict(named(series)[name].rows)[labels]
    assert not isinstance(found, Histogram)
    return found


def test_one_request_is_counted_once_everywhere() -> None:
    series = Series()
    series.know_models(["m"])
    serve_one(series)
    assert value(series, "isochrone_arrivals_total", "m", "chat") == 1
    assert value(series, "isochrone_requests_total", "m", "chat", "done", "2xx") == 1
    assert value(series, "isochrone_attempts_total", "m", "i", "done") == 1
    assert value(series, "isochrone_queue_held_total", "m") == 1
    assert value(series, "isochrone_retries_total", "m") == 0
    assert value(series, "isochrone_prompt_tokens_total", "m", "chat") == 100
    assert value(series, "isochrone_output_tokens_total", "m", "chat") == 35
    assert value(series, "isochrone_instance_prefill_tokens_total", "m", "i") == 60
    assert value(series, "isochrone_instance_cached_tokens_total", "m", "i") == 40
    assert value(series, "isochrone_instance_decode_tokens_total", "m", "i") == 35
    assert value(series, "isochrone_price_seconds_total", "m", "wait") == 0.5
    for name, mean in (("isochrone_ttft_seconds", 0.3), ("isochrone_tpot_seconds", 0.05), ("isochrone_e2e_seconds", 2)):
        histogram = dict(named(series)[name].rows)[("m", "chat")]
        assert isinstance(histogram, Histogram)
        assert (histogram.count, histogram.sum) == (1, mean)
    errors = dict(named(series)["isochrone_forecast_error_seconds"].rows)
    under = errors[("m", "under")]
    assert isinstance(under, Histogram)
    assert under.sum == 0.2, "the forecast was too short by 0.2 s"


def test_a_retry_counts_no_second_wait() -> None:
    series = Series()
    series.know_models(["m"])
    series.dispatched("m", "a", 1, 0.5)
    series.dispatched("m", "b", 2, 0.7)
    assert value(series, "isochrone_retries_total", "m") == 1
    wait = dict(named(series)["isochrone_queue_wait_seconds"].rows)[("m",)]
    assert isinstance(wait, Histogram)
    assert wait.count == 1


def rows(series: Series) -> int:
    return sum(len(family.rows) for family in families(series))


def test_strangers_names_share_one_value() -> None:
    series = Series()
    series.know_models(["m"])
    serve_one(series)
    serve_one(series, model="stranger", status=999)
    series.refused("stranger", "chat", "model_not_found")
    before = rows(series)
    chance = random.Random(1)
    for _ in range(20_000):
        name = f"{chance.random()}"
        series.arrived(name, "chat")
        series.refused(name, "chat", "model_not_found")
        series.attempt_ended(name, name, "done")
        series.request_done(name, "chat", name, decision(status=999), 1.0, None, None, 1, 1, 0)
    assert rows(series) == before
    assert value(series, "isochrone_refusals_total", OTHER, "chat", "model_not_found") == 20_001
    assert value(series, "isochrone_requests_total", OTHER, "chat", "done", OTHER) == 20_001


def test_routes_and_reasons_are_bounded() -> None:
    series = Series()
    series.know_models(["m"])
    for number in range(1000):
        serve_one(series, route=f"route-{number}")
        series.refused("m", "chat", f"reason-{number}")
    assert len(series.by_route) == ROUTES_MAX + 1
    assert rows(series) < 1000


def test_an_instance_that_left_takes_its_series_along() -> None:
    series = Series()
    series.know_models(["m"])
    serve_one(series, instance="a")
    before = rows(series)
    serve_one(series, instance="b")
    series.instance_gone("b")
    assert rows(series) == before
    series.first_token("m", "chat", "b", 0.1)
    series.attempt_ended("m", "b", "done")
    assert rows(series) == before, "late news of an instance that is gone makes no new series"


def test_histogram_buckets_are_cumulative_and_inclusive() -> None:
    histogram = Histogram(TTFT_S)
    for observed in (0.01, 0.011, 1000.0):
        histogram.observe(observed)
    cumulative = dict(histogram.cumulative())
    assert (cumulative["0.01"], cumulative["0.025"], cumulative["160.0"], cumulative["+Inf"]) == (1, 2, 2, 3)


def test_family_names_follow_the_rules() -> None:
    for family in families(Series()):
        assert family.name.startswith("isochrone_")
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert family.help.endswith(".") or "." in family.help
