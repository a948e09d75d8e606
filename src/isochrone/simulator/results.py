"""Results of a sweep as one JSON value: means over seeds with 95 % intervals, and paired differences."""

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import TypedDict

from isochrone.simulator.figures import MEANINGS
from isochrone.simulator.requests import Objective
from isochrone.simulator.sweep import Result

T_95 = (0.0, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t for a two-sided 95 % interval, by degrees of freedom."""
LEADER = "equal-cost"
"""The arm that the others are compared with, where it is there; else the first one."""

Point = tuple[float, int]
"""(rate scale, instances)"""


class Gap(TypedDict):
    """Of a figure: mean over the seeds of one arm's minus another's, and half the 95 % interval of that mean."""

    difference: float | None
    interval: float | None


def student_t(freedom: int) -> float:
    """Two-sided, 95 %. Beyond ten degrees of freedom to within 0.001."""
    return T_95[freedom] if freedom < len(T_95) else 1.96 + 2.4 / freedom + 2.6 / freedom**2


def half_width(values: Sequence[float]) -> float | None:
    """Half of the 95 % interval of the mean; None from one value."""
    if len(values) < 2:
        return None
    return student_t(len(values) - 1) * stdev(values) / sqrt(len(values))


def summary(results: Sequence[Result]) -> dict[str, object]:
    """One arm at one point, over its seeds."""
    means: dict[str, object] = {}
    intervals: dict[str, object] = {}
    for name in MEANINGS:
        values = [value for result in results if (value := result.figures[name]) is not None]
        means[name] = fmean(values) if values else None
        intervals[name] = half_width(values)
    outcomes: dict[str, int] = {}
    for result in results:
        for outcome, count in result.outcomes.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
    return {
        **means,
        "intervals": intervals,
        "outcomes": outcomes,
        "seeds": sorted(result.seed for result in results),
        "cpu_s": sum(result.cpu_s for result in results),
        "wall_s": sum(result.wall_s for result in results),
        "memory_bytes": max(result.memory_bytes for result in results),
    }


def compared(first: Sequence[Result], second: Sequence[Result]) -> dict[str, Gap]:
    """Paired by seed: mean of first minus second and half its interval, for the ratios and percentiles."""
    by_seed = {result.seed: result for result in second}
    differences: dict[str, Gap] = {}
    for name in MEANINGS:
        pairs = [
            (mine, yours)
            for result in first
            if result.seed in by_seed
            and (mine := result.figures[name]) is not None
            and (yours := by_seed[result.seed].figures[name]) is not None
        ]
        if pairs:
            gaps = [mine - yours for mine, yours in pairs]
            differences[name] = {"difference": fmean(gaps), "interval": half_width(gaps)}
    return differences


def leader(arms: Iterable[str]) -> str:
    """Whom the others are compared with."""
    names = list(arms)
    return LEADER if LEADER in names else names[0]


def notes(results: Sequence[Result]) -> list[str]:
    """What was done to the workload, and what of the engines was not held to."""
    return sorted({note for result in results for note in result.notes})


def by_point(results: Sequence[Result]) -> dict[Point, dict[str, list[Result]]]:
    """Point -> arm -> its results by seed, arms in order of first appearance."""
    points: dict[Point, dict[str, list[Result]]] = {}
    for result in sorted(results, key=_order):
        arms = points.setdefault((result.rate_scale, result.instances), {})
        arms.setdefault(result.arm, []).append(result)
    return points


def _order(result: Result) -> tuple[float, int, str, int]:
    return result.rate_scale, result.instances, result.arm, result.seed


def document(results: Sequence[Result], arms: Sequence[str], about: Mapping[str, object]) -> dict[str, object]:
    """The whole JSON value. With one point `policies` stands at the top, else in each of `points`."""
    points = []
    for (rate_scale, instances), found in by_point(results).items():
        ordered = {arm: found[arm] for arm in arms if arm in found}
        first = leader(ordered)
        points.append(
            {
                "rate_scale": rate_scale,
                "instances": instances,
                "calls": ordered[first][0].calls,
                "offered_rps": fmean(result.offered_rps for result in ordered[first]),
                "policies": {arm: summary(some) for arm, some in ordered.items()},
                "against": {
                    f"{first} - {arm}": compared(ordered[first], some) for arm, some in ordered.items() if arm != first
                },
            }
        )
    head: dict[str, object] = {**about, "notes": notes(results)}
    return {**head, **points[0]} if len(points) == 1 else {**head, "points": points}


def slo(objective: Objective) -> dict[str, float]:
    """The objective of every comparison, for the JSON."""
    return {
        "ttft_s": objective.ttft_s,
        "ttft_times_unloaded_prefill": objective.ttft_factor,
        "mean_tpot_s": objective.tpot_s,
    }
