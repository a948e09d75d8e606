"""Latencies that were measured in real time beside the simulator's, for checks that need engines to talk to.

Who talks to them is not the simulator's business: the command line measures and hands the latencies in.
"""

from collections.abc import Sequence

import numpy as np

from isochrone.simulator.belief.alone import Served
from isochrone.simulator.belief.finding import Finding, Verdict, compared
from isochrone.simulator.plan import Plan
from isochrone.simulator.run import simulate
from isochrone.simulator.workload import Workload

PERCENTILES = (50, 90)
KINDS = ("TTFT", "TPOT", "E2E")


def simulated(plan: Plan, workload: Workload) -> Served:
    """What the simulator says of each call."""
    tally = simulate(plan, workload).tally
    due, first, ended = (np.array(column) / 1e9 for column in (tally.due, tally.first, tally.ended))
    return Served(first - due, ended - due, np.array([call.output_tokens for call in workload.calls]))


def figures(served: Served) -> dict[tuple[str, int], float]:
    """(kind, percentile) -> seconds."""
    columns = dict(zip(KINDS, (served.ttft_s, served.tpot_s[served.output > 1], served.e2e_s), strict=True))
    return {(kind, q): float(np.percentile(column, q)) for kind, column in columns.items() for q in PERCENTILES}


def compare(
    finding: Finding, label: str, measured: Sequence[Served], ours: Served, error_max: float, spread_times: float = 0.0
) -> list[tuple[float, bool]]:
    """A row for each figure: the mean of the measured runs beside ours. It holds within `error_max`, or within
    `spread_times` the spread of the measured runs. Returns errors and verdicts."""
    runs = [figures(one) for one in measured]
    found = figures(ours)
    results = []
    for (kind, q), simulated_s in found.items():
        values = [run[kind, q] for run in runs]
        mean_s = sum(values) / len(values)
        spread = _spread(values)
        error = abs(simulated_s / mean_s - 1)
        holds = error <= max(error_max, spread_times * spread)
        results.append((error, holds))
        noted = f", spread of {len(runs)} runs {spread:.0%}" if len(runs) > 1 else ""
        row = compared(f"{label}: {kind} p{q}{noted}", mean_s * 1e3, simulated_s * 1e3, "ms", Verdict.of(holds))
        finding.rows.append(row)
    return results


def spread_of(measured: Sequence[Served]) -> list[float]:
    """How far equal runs lie apart, for each figure, as a share of their mean."""
    runs = [figures(one) for one in measured]
    return [_spread([run[key] for run in runs]) for key in runs[0]]


def _spread(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / (sum(values) / len(values))
