"""The figures of one run. Latencies are over served calls; ratios are over all that were offered.

A refused or failed call misses goodput, and is in no percentile: percentiles of two arms may be compared only where
both serve nearly everything, or both admit alike.
"""

from collections.abc import Sequence

import numpy as np

from isochrone.simulator.plan import Run
from isochrone.simulator.requests import Objective
from isochrone.simulator.tally import UNSEEN
from isochrone.simulator.unloaded import first_token_s
from isochrone.simulator.workload import Call
from isochrone.twin.profiles import Profile

CDF_POINTS = 200
Figures = dict[str, float | None]

MEANINGS = {
    "goodput_ratio": "calls inside the objective, over all offered",
    "token_goodput_ratio": "their prompt and output tokens, over all offered",
    "served_ratio": "calls answered whole",
    "served_ratio_longest_decile": "... among the tenth with the longest prompts",
    "ttft_p50_s": "due time to first token",
    "ttft_p99_s": "",
    "short_prompt_ttft_p99_s": "... among the half with the shorter prompts",
    "tpot_p99_s": "mean gap between tokens, per call",
    "e2e_p50_s": "due time to last token",
    "e2e_p99_s": "",
    "slowdown_p99": "TTFT over the unloaded prefill time",
    "hit_ratio": "prompt tokens found in an engine's prefix cache",
    "preemptions": "answers that an engine threw out of memory and began again",
    "retried_ratio": "calls that took more than one attempt",
    "forecast_e2e_spread": "median over decisions: slowest minus fastest forecast of the candidates, seconds",
    "forecast_e2e_ratio": "real time over forecast, sums over served calls",
    "forecast_e2e_error": "real time less forecast regardless of sign, over real time: sums over served calls",
    "forecast_ttft_error_p50_s": "the same from dispatch to first token, median in seconds",
    "virtual_s": "length of the run in virtual time",
}
"""Name -> what it is."""


class Columns:
    """A run's calls as arrays. Seconds; only calls that were due after the warm-up."""

    def __init__(self, run: Run, calls: Sequence[Call], reference: Profile, warm_s: float = 0.0) -> None:
        tally = run.tally
        due = np.frombuffer(tally.due, dtype=np.int64)
        kept = due != UNSEEN
        if warm_s:
            kept &= due >= due[kept].min() + round(warm_s * 1e9)
        first, ended = np.frombuffer(tally.first, dtype=np.int64), np.frombuffer(tally.ended, dtype=np.int64)
        self.served = np.frombuffer(tally.served, dtype=np.uint8).astype(bool)[kept]
        self.prompt = np.array([call.prompt_tokens for call in calls])[kept]
        self.output = np.array([call.output_tokens for call in calls])[kept]
        self.ttft = ((first - due) / 1e9)[kept]
        self.e2e = ((ended - due) / 1e9)[kept]
        self.cached = np.frombuffer(tally.cached, dtype=np.int64)[kept]
        self.tries = np.frombuffer(tally.tries, dtype=np.uint8)[kept]
        several = np.maximum(self.output - 1, 1)
        self.tpot = np.where(self.output > 1, (self.e2e - self.ttft) / several, 0.0)
        sizes, where = np.unique(self.prompt, return_inverse=True)
        self.unloaded = np.array([first_token_s(reference, int(size)) for size in sizes])[where]


def figures(run: Run, columns: Columns, objective: Objective) -> Figures:
    """Everything in MEANINGS."""
    c, served = columns, columns.served
    limit = objective.ttft_s + objective.ttft_factor * c.unloaded
    good = served & (c.ttft <= limit) & (c.tpot <= objective.tpot_s)
    tokens = c.prompt + c.output
    longest = c.prompt >= np.quantile(c.prompt, 0.9)
    short = served & (c.prompt <= np.median(c.prompt))
    tally = run.tally
    return {
        "goodput_ratio": _mean(good),
        "token_goodput_ratio": float(tokens[good].sum() / tokens.sum()),
        "served_ratio": _mean(served),
        "served_ratio_longest_decile": _mean(served[longest]),
        "ttft_p50_s": _quantile(c.ttft[served], 0.5),
        "ttft_p99_s": _quantile(c.ttft[served], 0.99),
        "short_prompt_ttft_p99_s": _quantile(c.ttft[short], 0.99),
        "tpot_p99_s": _quantile(c.tpot[served & (c.output > 1)], 0.99),
        "e2e_p50_s": _quantile(c.e2e[served], 0.5),
        "e2e_p99_s": _quantile(c.e2e[served], 0.99),
        "slowdown_p99": _quantile((c.ttft / c.unloaded)[served], 0.99),
        "hit_ratio": float(c.cached[served].sum() / max(1, c.prompt[served].sum())),
        "preemptions": float(run.preemptions),
        "retried_ratio": _mean(c.tries > 1),
        "forecast_e2e_spread": _quantile(np.array(tally.spreads), 0.5),
        "forecast_e2e_ratio": tally.real_s / tally.forecast_s if tally.forecast_s else None,
        "forecast_e2e_error": tally.e2e_error_s / tally.real_s if tally.real_s else None,
        "forecast_ttft_error_p50_s": _quantile(np.frombuffer(tally.ttft_errors_s), 0.5),
        "virtual_s": run.virtual_s,
    }


def cdf(values: np.ndarray) -> list[float]:
    """CDF_POINTS evenly spaced quantiles, for a plot."""
    if not len(values):
        return []
    quantiles: list[float] = np.quantile(values, np.linspace(0.0, 1.0, CDF_POINTS)).round(6).tolist()
    return quantiles


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0


def _quantile(values: np.ndarray, q: float) -> float | None:
    return float(np.quantile(values, q)) if len(values) else None
