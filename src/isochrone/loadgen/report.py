"""From results to figures. Nothing that was offered is left out.

A call that failed or was refused counts in the TTFT and E2E percentiles as if it had taken the client's whole limit,
and as a miss in goodput. TPOT has no such reading: it is over served streams of at least two tokens.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from isochrone.loadgen.calls import Result


@dataclass(frozen=True, slots=True)
class Objective:
    """What a route class's users want: both bounds hold, or the request was no good."""

    ttft_s: float
    tpot_s: float

    def met(self, result: Result) -> bool:
        """Served whole, first token in time, and its mean gap in bounds (one token has no gap)."""
        ttft, tpot = result.ttft_s, result.tpot_s
        return result.served and ttft is not None and ttft <= self.ttft_s and (tpot is None or tpot <= self.tpot_s)


@dataclass(frozen=True, slots=True)
class Figures:
    """One replay, or the median of several."""

    ttft_p50_s: float
    ttft_p99_s: float
    tpot_p99_s: float
    e2e_p50_s: float
    e2e_p99_s: float
    goodput_ratio: float
    """Requests inside their objective, over all offered."""
    served_ratio: float
    cache_hit_ratio: float
    """Prompt tokens that an engine's prefix cache held, over all prompt tokens, as `usage` says."""
    requests: float
    output_tokens_per_s: float
    requests_per_instance: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: a value that was seen, never one between two."""
    ordered = sorted(values)
    return ordered[min(len(ordered), max(1, math.ceil(share * len(ordered)))) - 1]


def figures(results: Sequence[Result], objectives: Mapping[str, Objective], whole_limit_s: float) -> Figures:
    """Figures of one replay. `results`: every offered request. A route without an objective asks only for service."""
    if not results:
        raise ValueError("no results: nothing was offered")
    ttft = [_charged(result, result.ttft_s, whole_limit_s) for result in results]
    e2e = [_charged(result, result.e2e_s, whole_limit_s) for result in results]
    tpot = [result.tpot_s for result in results if result.served and result.tpot_s is not None]
    served = [result for result in results if result.served]
    anything = Objective(math.inf, math.inf)
    prompt_tokens = sum(result.prompt_tokens for result in served)
    span_s = max(result.ended_at or 0.0 for result in results) - min(result.intended_at for result in results)
    return Figures(
        ttft_p50_s=percentile(ttft, 0.5),
        ttft_p99_s=percentile(ttft, 0.99),
        tpot_p99_s=percentile(tpot, 0.99) if tpot else 0.0,
        e2e_p50_s=percentile(e2e, 0.5),
        e2e_p99_s=percentile(e2e, 0.99),
        goodput_ratio=sum(objectives.get(result.route, anything).met(result) for result in results) / len(results),
        served_ratio=len(served) / len(results),
        cache_hit_ratio=sum(result.cached_tokens for result in served) / prompt_tokens if prompt_tokens else 0.0,
        requests=len(results),
        output_tokens_per_s=sum(result.tokens for result in results) / span_s if span_s > 0 else 0.0,
        requests_per_instance=dict(sorted(Counter(result.instance for result in results if result.instance).items())),
        errors=dict(Counter(_kind(result) for result in results if result.error)),
    )


def median(rounds: Sequence[Figures]) -> Figures:
    """Each figure's median on its own; an instance or error that a round did not see counts 0 there."""
    return Figures(
        ttft_p50_s=statistics.median(each.ttft_p50_s for each in rounds),
        ttft_p99_s=statistics.median(each.ttft_p99_s for each in rounds),
        tpot_p99_s=statistics.median(each.tpot_p99_s for each in rounds),
        e2e_p50_s=statistics.median(each.e2e_p50_s for each in rounds),
        e2e_p99_s=statistics.median(each.e2e_p99_s for each in rounds),
        goodput_ratio=statistics.median(each.goodput_ratio for each in rounds),
        served_ratio=statistics.median(each.served_ratio for each in rounds),
        cache_hit_ratio=statistics.median(each.cache_hit_ratio for each in rounds),
        requests=statistics.median(each.requests for each in rounds),
        output_tokens_per_s=statistics.median(each.output_tokens_per_s for each in rounds),
        requests_per_instance=_median_counts([each.requests_per_instance for each in rounds]),
        errors=_median_counts([each.errors for each in rounds]),
    )


def _kind(result: Result) -> str:
    return f"http {result.status}" if result.error == "http" else result.error


def _median_counts(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = sorted({name for each in rounds for name in each})
    return {name: statistics.median(each.get(name, 0.0) for each in rounds) for name in names}


def _charged(result: Result, value: float | None, whole_limit_s: float) -> float:
    return value if result.served and value is not None else whole_limit_s
