"""Fit the step-time model of `isochrone.twin.steptime` to measured kernel times, and print the errors.

    python benchmarks/fit_profiles.py STEP_TIMES.csv

The CSV has a row for each measured step with the columns kind, gpu, model, tp, phase, batch, prompt_tokens,
context_tokens and step_ms. Rows of kind `composed_ops` are sums of kernel times measured by NVIDIA's aiconfigurator
(wheel aiconfigurator-core 0.12.0, Apache-2.0, folder systems/): GEMM, attention and all-reduce of Llama-3.1 in bf16.
A step of a serving engine also launches kernels, normalises, samples and schedules; that constant `o` is not in these
rows and is stated in `isochrone/twin/profiles.py`, not fitted here.

The model is linear in its five parameters once it is known which rows lie on the floor, so the fit alternates: sort
the rows by the present parameters, solve least squares on the relative error, repeat until no row changes sides.
"""

import csv
import itertools
import sys
from dataclasses import dataclass

import numpy as np

from isochrone.twin.profiles import PROFILES

TARGETS = {
    "h100-8b": ("h100_sxm", "Llama-3.1-8B", "1"),
    "h100-70b-tp4": ("h100_sxm", "Llama-3.1-70B", "4"),
    "a100-8b": ("a100_sxm", "Llama-3.1-8B", "1"),
}
"""Profile -> (gpu, model, tensor parallel size) of its rows."""


@dataclass(frozen=True)
class Rows:
    """Measured steps as columns: T tokens in the batch, K KV tokens read, A attention pairs, seconds."""

    tokens: np.ndarray
    kv_read: np.ndarray
    pairs: np.ndarray
    seconds: np.ndarray


def read_rows(path: str, gpu: str, model: str, tp: str) -> Rows:
    columns: list[tuple[float, float, float, float]] = []
    with open(path, newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if (row["kind"], row["gpu"], row["model"], row["tp"]) != ("composed_ops", gpu, model, tp):
                continue
            seconds = float(row["step_ms"]) / 1e3
            if row["phase"] == "prefill":
                prompt = float(row["prompt_tokens"])
                columns.append((prompt, 0.0, prompt * prompt / 2, seconds))
            else:
                batch = float(row["batch"])
                columns.append((batch, batch * float(row["context_tokens"]), 0.0, seconds))
    if not columns:
        raise SystemExit(f"{path}: no composed_ops rows for {gpu}, {model}, tensor parallel {tp}")
    return Rows(*np.array(columns).T)


def nonnegative_least_squares(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Best x >= 0 of |matrix x - wanted|. Five columns: trying every set of positive ones is exact and quick."""
    width = matrix.shape[1]
    best, best_error = np.zeros(width), float(wanted @ wanted)
    for size in range(1, width + 1):
        for chosen in itertools.combinations(range(width), size):
            columns = list(chosen)
            solution = np.linalg.lstsq(matrix[:, columns], wanted, rcond=None)[0]
            residual = matrix[:, columns] @ solution - wanted
            if (solution >= 0).all() and residual @ residual < best_error:
                best, best_error = np.zeros(width), float(residual @ residual)
                best[columns] = solution
    return best


def predict(theta: np.ndarray, rows: Rows) -> np.ndarray:
    floor, a, b, k, q = theta
    return np.maximum(floor, a + b * rows.tokens) + k * rows.kv_read + q * rows.pairs


def fit(rows: Rows) -> np.ndarray:
    """(floor, a, b, k, q) with the least squared relative error, over several starting places of the knee."""
    best, best_error = np.zeros(5), float("inf")
    for knee_tokens in (64, 128, 256, 384, 512):
        linear = rows.tokens > knee_tokens
        for _ in range(50):
            matrix = np.stack([~linear, linear, linear * rows.tokens, rows.kv_read, rows.pairs], axis=1)
            theta = nonnegative_least_squares(matrix / rows.seconds[:, None], np.ones(len(rows.seconds)))
            moved = theta[1] + theta[2] * rows.tokens > theta[0]
            if (moved == linear).all():
                break
            linear = moved
        error = float(np.sum((predict(theta, rows) / rows.seconds - 1) ** 2))
        if error < best_error:
            best, best_error = theta, error
    return best


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
    print("profile        rows   floor_s       a_s           b_s_per_token  k_s_per_kv    q_s_per_pair  MAPE    worst")
    for name, (gpu, model, tp) in TARGETS.items():
        rows = read_rows(sys.argv[1], gpu, model, tp)
        theta = fit(rows)
        error = np.abs(predict(theta, rows) / rows.seconds - 1)
        values = "  ".join(f"{value:<12.4g}" for value in theta)
        print(f"{name:<13}  {len(rows.seconds):<5}  {values}  {error.mean():6.1%}  {error.max():6.1%}")
    check_against_servers(sys.argv[1])


if __name__ == "__main__":
    main()
