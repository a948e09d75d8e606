"""Reads the folds out as metric families: names, help, labels and rows as plain data.

This is the one list of what the core counts. `gateway/metrics.py` turns it into Prometheus text; the dashboard and
`docs/reference/metrics.md` are checked against it. Latencies are measured at the gateway.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from isochrone.observe.histogram import Histogram
from isochrone.observe.series import OTHER, InstanceSeries, ModelSeries, RouteSeries, Series

Row = tuple[tuple[str, ...], float | Histogram]
"""Label values in the order of the family's labels, and a number or a histogram."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. `kind` is `counter`, `gauge` or `histogram`; counters end in `_total`."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    rows: list[Row] = field(default_factory=list)


_ROUTE = ("model", "route")
_PLACE = ("model", "instance")

_BY_MODEL: tuple[tuple[str, str, str, Callable[[ModelSeries], float | Histogram]], ...] = (
    ("isochrone_queue_held_total", "counter", "Requests that were held before their first dispatch.", lambda s: s.held),
    (
        "isochrone_fallbacks_total",
        "counter",
        "Requests for the model that went on to a fallback model.",
        lambda s: s.fallbacks,
    ),
    ("isochrone_retries_total", "counter", "Dispatches beyond the first of their request.", lambda s: s.retries),
    ("isochrone_priced_total", "counter", "Decisions whose price terms were counted.", lambda s: s.priced),
    ("isochrone_queue_wait_seconds", "histogram", "From arrival to first dispatch.", lambda s: s.wait),
    (
        "isochrone_forecast_spread_seconds",
        "histogram",
        "Slowest minus fastest forecast over the instances of one decision.",
        lambda s: s.spread,
    ),
)
_BY_ROUTE: tuple[tuple[str, str, str, Callable[[RouteSeries], float | Histogram]], ...] = (
    ("isochrone_arrivals_total", "counter", "Well-formed requests.", lambda s: s.arrived),
    ("isochrone_queue_left_total", "counter", "Held requests whose clients left.", lambda s: s.left),
    ("isochrone_prompt_tokens_total", "counter", "Prompt tokens of requests that are over.", lambda s: s.prompt_tokens),
    ("isochrone_output_tokens_total", "counter", "Output tokens of requests that are over.", lambda s: s.output_tokens),
    (
        "isochrone_cached_tokens_total",
        "counter",
        "Prompt tokens that an engine's prefix cache held.",
        lambda s: s.cached_tokens,
    ),
    ("isochrone_ttft_seconds", "histogram", "From arrival to the first output token (streams).", lambda s: s.ttft),
    ("isochrone_tpot_seconds", "histogram", "Mean gap between output tokens of a request.", lambda s: s.tpot),
    ("isochrone_e2e_seconds", "histogram", "From arrival to the end of the answer.", lambda s: s.e2e),
)
_BY_INSTANCE: tuple[tuple[str, str, str, Callable[[InstanceSeries], float | Histogram]], ...] = (
    ("isochrone_instance_dispatches_total", "counter", "Attempts sent to the instance.", lambda s: s.dispatched),
    (
        "isochrone_instance_prefill_tokens_total",
        "counter",
        "Prompt tokens computed (cached ones left out) for requests that are over; its rate is prefill throughput.",
        lambda s: s.prefill_tokens,
    ),
    (
        "isochrone_instance_cached_tokens_total",
        "counter",
        "Prompt tokens that the instance's prefix cache held.",
        lambda s: s.cached_tokens,
    ),
    (
        "isochrone_instance_decode_tokens_total",
        "counter",
        "Output tokens of requests that are over; its rate is decode throughput.",
        lambda s: s.decode_tokens,
    ),
    ("isochrone_instance_ttft_seconds", "histogram", "As isochrone_ttft_seconds, by instance.", lambda s: s.ttft),
    ("isochrone_instance_tpot_seconds", "histogram", "As isochrone_tpot_seconds, by instance.", lambda s: s.tpot),
    ("isochrone_instance_e2e_seconds", "histogram", "As isochrone_e2e_seconds, by instance.", lambda s: s.e2e),
)


def families(series: Series) -> list[Family]:
    """All families, those without rows included (a metric that has not happened yet still has its help text)."""
    found: list[Family] = []
    for name, kind, text, of_model in _BY_MODEL:
        rows: list[Row] = [((model,), of_model(cell)) for model, cell in series.by_model.items()]
        found.append(Family(name, kind, text, ("model",), rows))
    for name, kind, text, of_route in _BY_ROUTE:
        found.append(Family(name, kind, text, _ROUTE, [(key, of_route(cell)) for key, cell in series.by_route.items()]))
    for name, kind, text, of_place in _BY_INSTANCE:
        rows = [(key, of_place(cell)) for key, cell in series.by_instance.items()]
        found.append(Family(name, kind, text, _PLACE, rows))
    found.append(_refusals(series))
    found.append(_requests(series))
    found.append(_attempts(series))
    found.append(_terms(series))
    found.append(_errors(series))
    return found


def _refusals(series: Series) -> Family:
    rows = _spread(((key, cell.refused.items()) for key, cell in series.by_route.items()))
    return Family(
        "isochrone_refusals_total",
        "counter",
        "Requests answered with an error before any dispatch, by error code.",
        (*_ROUTE, "reason"),
        rows,
    )


def _requests(series: Series) -> Family:
    sums: dict[tuple[str, ...], float] = {}
    for key, cell in series.by_route.items():
        for (outcome, hundreds), count in cell.ended.items():
            status = f"{hundreds}xx" if 1 <= hundreds <= 5 else OTHER
            labels = (*key, outcome, status)
            sums[labels] = sums.get(labels, 0.0) + count
    return Family(
        "isochrone_requests_total",
        "counter",
        "Requests that are over, by outcome and class of the HTTP status.",
        (*_ROUTE, "outcome", "status"),
        list(sums.items()),
    )


def _attempts(series: Series) -> Family:
    rows = _spread(((key, cell.outcomes.items()) for key, cell in series.by_instance.items()))
    return Family(
        "isochrone_attempts_total", "counter", "Attempts that are over, by outcome.", (*_PLACE, "outcome"), rows
    )


def _terms(series: Series) -> Family:
    rows = _spread((((model,), cell.terms.items()) for model, cell in series.by_model.items()))
    return Family(
        "isochrone_price_seconds_total",
        "counter",
        "Sum of the winners' price terms; divide by isochrone_priced_total for the mean.",
        ("model", "term"),
        rows,
    )


def _errors(series: Series) -> Family:
    rows: list[Row] = []
    for model, cell in series.by_model.items():
        rows += [((model, "over"), cell.over), ((model, "under"), cell.under)]
    return Family(
        "isochrone_forecast_error_seconds",
        "histogram",
        "Size of forecast minus real; `over`: the forecast was too long, `under`: too short.",
        ("model", "direction"),
        rows,
    )


def _spread(cells: Iterable[tuple[tuple[str, ...], Iterable[tuple[str, float]]]]) -> list[Row]:
    """One row for each inner (label, count) of each cell."""
    return [((*key, label), count) for key, counts in cells for label, count in counts]
