"""Fit the step-time model of `isochrone.twin.steptime` to measured kernel times, and print the errors.

    python benchmarks/fit_profiles.py STEP_TIMES.csv

The CSV has a row for each measured step with the columns kind, gpu, model, tp, phase, batch, prompt_tokens,
context_tokens and step_ms. Rows of kind `composed_ops` are sums of kernel times measured by NVIDIA's aiconfigurator
(wheel aiconfigurator-core 0.12.0, Apache-2.0, folder systems/): GEMM, attention and all-reduce of Llama-3.1 in bf16.
A step of a serving engine also launches kernels, normalises, samples and schedules; that constant `o` is not in these
rows and is stated in `isochrone/twin/profiles.py`, not fitted here.

How the fit works is told in `isochrone/simulator/belief/stepfit.py`.
"""

import csv
import sys

import numpy as np

from isochrone.simulator.belief.stepfit import fit, predict
from isochrone.simulator.belief.steprows import read_groups
from isochrone.twin.profiles import PROFILES

TARGETS = {
    "h100-8b": ("h100_sxm", "Llama-3.1-8B", "1"),
    "h100-70b-tp4": ("h100_sxm", "Llama-3.1-70B", "4"),
    "a100-8b": ("a100_sxm", "Llama-3.1-8B", "1"),
}
"""Profile -> (gpu, model, tensor parallel size) of its rows."""


def check_against_servers(path: str) -> None:
    """The `h100-8b` profile against whole servers that the fit has not seen: TPOT at a fixed concurrency.

    In the steady state of a closed loop each step decodes `batch` rows and prefills batch * prompt / output tokens.
    """
    step = PROFILES["h100-8b"].step
    errors = []
    with open(path, newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            served = (row["kind"], row["gpu"], row["model"], row["tp"])
            if served != ("measured_serving", "h100_sxm", "meta-llama/Llama-3.1-8B-Instruct", "1"):
                continue
            batch, prompt, output = int(row["batch"]), int(row["prompt_tokens"]), int(row["output_tokens"])
            prefilled = batch * prompt / output
            seconds = step.seconds(round(batch + prefilled), batch * (prompt + output // 2), prefilled * prompt / 2)
            errors.append(seconds / (float(row["tpot_ms"]) / 1e3) - 1)
    error = np.array(errors)
    print(f"h100-8b against {len(error)} measured servers: mean error {error.mean():+.1%}, ", end="")
    print(f"mean absolute {np.abs(error).mean():.1%}, worst {np.abs(error).max():.1%}")


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: fit_profiles.py STEP_TIMES.csv")
    path = sys.argv[1]
    groups, _ = read_groups(path)
    kernels = {(key.gpu, key.model, key.tp): group for key, group in groups.items() if key.kind == "composed_ops"}
    print("profile        rows   floor_s       a_s           b_s_per_token  k_s_per_kv    q_s_per_pair  MAPE    worst")
    for name, rows in TARGETS.items():
        if rows not in kernels:
            raise SystemExit(f"{path}: no composed_ops rows for {', '.join(rows)}")
        steps = kernels[rows].whole()
        theta = fit(steps)
        error = np.abs(predict(theta, steps) / steps.seconds - 1)
        values = "  ".join(f"{value:<12.4g}" for value in theta)
        print(f"{name:<13}  {len(steps):<5}  {values}  {error.mean():6.1%}  {error.max():6.1%}")
    check_against_servers(path)


if __name__ == "__main__":
    main()
