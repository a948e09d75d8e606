"""Check: latencies of single requests on real vLLM (LLMServingSim's measured runs).

Four runs of 300 ShareGPT requests at ten a second, far above what the cards carry, so that most of a TTFT is queueing:
an error of the twin adds up over the run instead of averaging out.

Step times are fitted to the gaps of the odd requests of a run; the twin then serves all requests, and the even ones are
compared, one by one. For the RTX 4090 there is also a prediction with nothing of its run in it: the steps fitted on the
RTX PRO 6000 times the ratio of the cards' published bandwidth and arithmetic.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from isochrone.simulator.belief.alone import Ask, Served, serve
from isochrone.simulator.belief.finding import Check, Data, Finding, Row, Verdict, compared
from isochrone.simulator.belief.measured import Run, limits_seen, steps_seen
from isochrone.simulator.belief.stepfit import as_step_time, fit
from isochrone.simulator.formats import json_lines, opened
from isochrone.twin.schedule import Limits
from isochrone.twin.steptime import StepTime

FILE = "vllm_measured_requests.jsonl.gz"
ERROR_MAX = 0.20
"""Median over the even requests of each one's relative error, for TTFT and for E2E."""
CHUNK_TOKENS = 2048
SLOTS = (128, 256)
"""max_num_seqs is published as 128; where more ran at once it must have been vLLM's default of 256."""
SLOTS_SLACK = 4
"""Rows that end and begin at the same moment may look like more than there is room for."""
BLOCK_TOKENS = 16
AMPLE_TOKENS = 1_000_000
"""KV memory of the 96 GB card: it was never what requests waited for."""
RTX4090_KV_TOKENS = 46_700
"""(0.9 x 24 GiB - 16.06 GB of weights - 1 GB for activations) / 131,072 bytes a token."""
MEMORY_BOUND = {"RTX4090/Llama-3.1-8B/tp1": RTX4090_KV_TOKENS}
CARRIED_FROM, CARRIED_TO = "RTXPRO6000/Llama-3.1-8B/tp1", "RTX4090/Llama-3.1-8B/tp1"
BANDWIDTH_RATIO, ARITHMETIC_RATIO = 1792 / 1008, 503.8 / 165.2
"""RTX PRO 6000 over RTX 4090: GB/s, and dense 16-bit TFLOPS with 32-bit sums, as published for the cards."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One way to know the steps of one run's engine."""

    label: str
    run: Run
    step: StepTime
    limits: Limits


def run(data: Data) -> Finding:
    finding = Finding(
        name="vllm-requests",
        title="TTFT and E2E of single requests, real vLLM 0.19.0 against the twin",
        source=f"{FILE}: LLMServingSim bench/examples",
        bar=f"each run: median error of the even requests at most {ERROR_MAX:.0%}, in TTFT and in E2E",
        fitted="five step parameters a run, on the gaps of its odd requests; slots of 256 where more than 128 ran at "
        "once. The carried-over rows: nothing of their own run",
    )
    runs = read_runs(data.path(FILE))
    fits = {name: fit(steps_seen(one, range(0, len(one), 2))) for name, one in runs.items()}
    predictions = [Prediction(name, one, as_step_time(fits[name]), limits(name, one)) for name, one in runs.items()]
    if CARRIED_FROM in fits and CARRIED_TO in runs:
        there = runs[CARRIED_TO]
        label = f"{CARRIED_TO}, carried over from {CARRIED_FROM.partition('/')[0]}"
        predictions.append(Prediction(label, there, carried(fits[CARRIED_FROM]), limits(CARRIED_TO, there)))
    errors = []
    for prediction in predictions:
        errors += _compare(finding, prediction)
    missed = sum(error > ERROR_MAX for error in errors)
    finding.verdict = Verdict.of(missed == 0)
    finding.headline = (
        f"median errors {min(errors):.1%} to {max(errors):.1%} over {len(predictions)} predictions, "
        f"TTFT and E2E; {missed} of {len(errors)} above {ERROR_MAX:.0%}"
    )
    finding.notes += [
        "odd and even requests share one queue: a good fit on the odd ones helps the even ones more than it would a "
        "run of its own. The carried-over rows have no such help, and stand on peak figures: the cards' published "
        "arithmetic differs 3.0-fold, the steps fitted on each only 1.9-fold",
        f"chunks of {CHUNK_TOKENS} tokens and {SLOTS[0]} slots as published; KV memory never filled on the 96 GB card; "
        f"on the RTX 4090 it holds {RTX4090_KV_TOKENS:,} tokens by the card's size, and requests wait for it",
    ]
    return finding


def read_runs(path: str) -> dict[str, Run]:
    """Runs by name, in the file's order."""
    columns: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    with opened(path) as file:
        for line in json_lines(path, file):
            at = line.milliseconds("t_ms")
            name = line.fields.get("run")
            if not isinstance(name, str):
                raise line.wrong("run", "the run's name")
            columns[name].append(
                (
                    line.count("input_tokens"),
                    line.count("output_tokens"),
                    at,
                    *(at + line.milliseconds(field) for field in ("queue_ms", "ttft_ms", "e2e_ms")),
                )
            )
    runs = {}
    for name, rows in columns.items():
        prompt, output, *times_ms = np.array(sorted(rows, key=_by_arrival)).T
        at, scheduled, first, last = (column / 1e3 for column in times_ms)
        runs[name] = Run(prompt.astype(int), output.astype(int), at, scheduled, first, last)
    return runs


def _by_arrival(row: tuple[float, ...]) -> float:
    return row[2]


def limits(name: str, seen: Run) -> Limits:
    """What the run's engine does at once."""
    rows, _ = limits_seen(seen)
    slots = SLOTS[0] if rows <= SLOTS[0] + SLOTS_SLACK else SLOTS[1]
    return Limits(slots, CHUNK_TOKENS, BLOCK_TOKENS, MEMORY_BOUND.get(name, AMPLE_TOKENS) // BLOCK_TOKENS)


def carried(theta: np.ndarray) -> StepTime:
    """The steps of the slower card: what reads memory by bandwidth, what multiplies by arithmetic."""
    by_part = [BANDWIDTH_RATIO, BANDWIDTH_RATIO, ARITHMETIC_RATIO, BANDWIDTH_RATIO, ARITHMETIC_RATIO]
    return as_step_time(theta * np.array(by_part))


def _compare(finding: Finding, prediction: Prediction) -> list[float]:
    """Rows of one prediction; returns its two errors."""
    seen = prediction.run
    asks = [
        Ask(at, prompt, output)
        for at, prompt, output in zip(seen.at.tolist(), seen.prompt.tolist(), seen.output.tolist(), strict=True)
    ]
    even = np.arange(1, len(seen), 2)
    ours = serve(prediction.limits, prediction.step, asks).take(even)
    theirs = Served(seen.ttft, seen.e2e, seen.output).take(even)
    errors = []
    for what, measured, twin in (("TTFT", theirs.ttft_s, ours.ttft_s), ("E2E", theirs.e2e_s, ours.e2e_s)):
        error = float(np.median(np.abs(twin / measured - 1)))
        errors.append(error)
        halves = float(np.median(measured)), float(np.median(twin))
        verdict = Verdict.of(error <= ERROR_MAX)
        finding.rows.append(Row(f"{prediction.label}: {what}, by request", *halves, "s", error, verdict, len(even)))
        for q in (50, 90):
            pair = float(np.percentile(measured, q)), float(np.percentile(twin, q))
            finding.rows.append(compared(f"{prediction.label}: {what} p{q}", *pair, "s"))
    gaps = float(np.nanmedian(theirs.tpot_s)) * 1e3, float(np.nanmedian(ours.tpot_s)) * 1e3
    finding.rows.append(compared(f"{prediction.label}: TPOT p50", *gaps, "ms"))
    return errors


CHECK = Check("vllm-requests", "TTFT and E2E of single requests on real vLLM", run)
