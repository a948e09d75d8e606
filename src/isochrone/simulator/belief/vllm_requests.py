"""Check: latencies of single requests on real vLLM (LLMServingSim's measured runs).

Four runs of 300 ShareGPT requests at ten a second, far above what the cards carry, so that most of a TTFT is queueing:
an error of the twin adds up over the run instead of averaging out.

Step times are fitted to the gaps of the odd requests of a run; the twin then serves all requests, and the even ones are
compared, one by one. For the RTX 4090 there is also a prediction with nothing of its run in it: the steps fitted on the
RTX PRO 6000, times how much longer single layers take on the other card.

Limits are those that the runs' own records give (bench/examples/*/vllm/meta.json), as is that steps were planned ahead
(async_scheduling). Latencies count from when the engine had taken a request in: so they were recorded.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from isochrone.simulator.belief.alone import Ask, Served, serve
from isochrone.simulator.belief.finding import Check, Data, Finding, Row, Verdict, compared
from isochrone.simulator.belief.measured import Run, steps_seen
from isochrone.simulator.belief.stepfit import as_step_time, fit
from isochrone.simulator.formats import json_lines, opened
from isochrone.twin.ahead import AheadEngine
from isochrone.twin.schedule import Limits
from isochrone.twin.steptime import StepTime

FILE = "vllm_measured_requests.jsonl.gz"
ERROR_MAX = 0.20
"""Median over the even requests of each one's relative error, for TTFT and for E2E."""
CHUNK_TOKENS = 2048
"""max_num_batched_tokens of every engine."""
BLOCK_TOKENS = 16
AMPLE_TOKENS = 1_000_000
"""KV memory of the 96 GB card: it was never what requests waited for."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run's engine was started."""

    max_num_seqs: int = 128
    kv_tokens: int = AMPLE_TOKENS
    ranks: int = 1
    """Data-parallel ranks in lock step. Here they are one engine with the slots and the chunks of all."""


SETTINGS = {
    "RTX4090/Llama-3.1-8B/tp1": Settings(max_num_seqs=256, kv_tokens=41_408),
    "RTXPRO6000/Qwen3-30B-A3B-Instruct-2507/tp1": Settings(ranks=2),
}
"""Run -> its settings where they are not the usual ones."""
CARRIED_FROM, CARRIED_TO = "RTXPRO6000/Llama-3.1-8B/tp1", "RTX4090/Llama-3.1-8B/tp1"
READING, DECODE_ATTENTION = 1.51, 1.50
MULTIPLYING, PREFILL_ATTENTION = 2.45, 1.93
"""RTX 4090 over RTX PRO 6000: single layers of Llama-3.1-8B as LLMServingSim's profiler measured them on both (vLLM
0.19, profiler/perf): all dense layers of one token; attention of 128 rows of 1,024 tokens; what 2,048 tokens take more
than 1,024 in the dense layers; attention of a prompt of 2,048."""


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
        fitted="five step parameters a run, on the gaps of its odd requests. The carried-over rows: nothing of their "
        "own run; the other card's steps, and layer times that were measured on both",
    )
    runs = read_runs(data.path(FILE))
    fits = {name: fit(steps_seen(one, range(0, len(one), 2))) for name, one in runs.items()}
    predictions = [Prediction(name, one, as_step_time(fits[name]), limits(name)) for name, one in runs.items()]
    if CARRIED_FROM in fits and CARRIED_TO in runs:
        there = runs[CARRIED_TO]
        label = f"{CARRIED_TO}, carried over from {CARRIED_FROM.partition('/')[0]}"
        predictions.append(Prediction(label, there, carried(fits[CARRIED_FROM]), limits(CARRIED_TO)))
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
        "run of its own. The carried-over rows have no such help",
        f"limits as the runs' records give them: {CHUNK_TOKENS} tokens a step and 128 slots, on the RTX 4090 256 slots "
        "and 41,408 tokens of KV memory; room for a whole prompt before it is let in (vLLM's default since 0.19)",
        "as there, steps are planned while the one before runs, and latencies count from when the engine has taken a "
        "request in, at the end of the step in flight",
        "Qwen3-30B-A3B ran as two data-parallel ranks in lock step: one engine of 256 slots here",
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


def limits(name: str) -> Limits:
    """What the run's engine does at once."""
    known = SETTINGS.get(name, Settings())
    return Limits(
        known.max_num_seqs * known.ranks,
        CHUNK_TOKENS * known.ranks,
        BLOCK_TOKENS,
        known.kv_tokens // BLOCK_TOKENS,
        room_for_prompt=True,
    )


def carried(theta: np.ndarray) -> StepTime:
    """The steps of the slower card. What does not grow with the tokens of a step is reading weights."""
    by_part = [READING, READING, MULTIPLYING, DECODE_ATTENTION, PREFILL_ATTENTION]
    return as_step_time(theta * np.array(by_part))


def _compare(finding: Finding, prediction: Prediction) -> list[float]:
    """Rows of one prediction; returns its two errors."""
    seen = prediction.run
    asks = [
        Ask(at, prompt, output)
        for at, prompt, output in zip(seen.at.tolist(), seen.prompt.tolist(), seen.output.tolist(), strict=True)
    ]
    even = np.arange(1, len(seen), 2)
    ours = serve(prediction.limits, prediction.step, asks, AheadEngine, from_taken=True).take(even)
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
