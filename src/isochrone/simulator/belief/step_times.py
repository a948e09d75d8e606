"""Check: the twin's step-time form against measured steps and servers, by GPU, model and parallelism.

The form is fitted to the odd rows of each group and asked for the even ones.
"""

from collections import defaultdict

import numpy as np

from isochrone.simulator.belief.finding import Check, Data, Finding, Row, Verdict
from isochrone.simulator.belief.stepfit import fit, predict
from isochrone.simulator.belief.steprows import FILE, read_groups

ERROR_MAX = 0.10
"""Median error over the reported rows at which the form still counts as right."""
KINDS = {
    "measured_step": "single steps of vLLM of 2023 (Splitwise)",
    "composed_ops": "sums of measured kernel times (aiconfigurator)",
    "fit": "published fits of OPT steps (DistServe)",
    "measured_serving": "mean gaps of whole servers at a fixed concurrency (aiconfigurator)",
}


def run(data: Data) -> Finding:
    groups, left_out = read_groups(data.path(FILE))
    finding = Finding(
        name="step-times",
        title="Step times by GPU, model and tensor parallelism",
        source=FILE,
        bar=f"median error over all even rows at most {ERROR_MAX:.0%}",
        fitted="five parameters for each group, on its odd rows; even rows are reported",
    )
    by_kind: dict[str, list[np.ndarray]] = defaultdict(list)
    lonely = 0
    for key, group in groups.items():
        odd, even = group.halves()
        if not len(even):
            lonely += len(odd)
            continue
        ours = predict(fit(odd), even)
        errors = np.abs(ours / even.seconds - 1)
        by_kind[key.kind].append(errors)
        error = float(np.median(errors))
        published, predicted = float(np.median(even.seconds)) * 1e3, float(np.median(ours)) * 1e3
        what = f"{key}, {len(even)} rows"
        finding.rows.append(Row(what, published, predicted, "ms", error, Verdict.of(error <= ERROR_MAX), len(even)))
    summary, every = [], np.concatenate([errors for some in by_kind.values() for errors in some])
    for kind, some in by_kind.items():
        errors = np.concatenate(some)
        error = float(np.median(errors))
        what = f"all {KINDS[kind]}: {len(errors)} rows"
        summary.append(Row(what, None, None, "", error, Verdict.of(error <= ERROR_MAX), len(errors)))
    finding.rows = summary + finding.rows
    median, worst_tenth = float(np.median(every)), float(np.quantile(every, 0.9))
    over = sum(row.verdict is Verdict.MISSES for row in finding.rows[len(summary) :])
    finding.verdict = Verdict.of(median <= ERROR_MAX)
    finding.headline = (
        f"median error {median:.1%} over {len(every)} even rows, a tenth above {worst_tenth:.0%}; "
        f"{over} of {len(finding.rows) - len(summary)} groups above {ERROR_MAX:.0%}"
    )
    finding.notes.append(f"{left_out} decode rows of batch 64 are left out: their collectors distrust them")
    if lonely:
        finding.notes.append(f"{lonely} rows stand alone in their group, so that no even row is left to predict")
    finding.notes.append(
        "servers: the mean gap (TPOT) is predicted from concurrency and lengths; their TTFT is queueing, not a step"
    )
    return finding


CHECK = Check("step-times", "step times by GPU, model and TP against step_times.csv", run)
