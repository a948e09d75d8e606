"""Check: a real engine on this machine, calibrated on one load and predicted on another.

calibration   prompts one at a time, then a light load: the five step parameters are fitted to their latencies, and one
              constant for what a request costs outside the engine's steps (connection, API server, tokenizer)
prediction    two and six times the load with other lengths, each sent twice with different prompts; the twin has seen
              none of it
noise         two equal runs that differ too much, or lone calls that take another time after than before, say that
              this machine cannot judge today. Whether the prediction was right plays no part in that
"""

import json
import random
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import uvloop

from isochrone.cli.live import Unusable, measure
from isochrone.simulator.belief.alone import Ask, Served, serve
from isochrone.simulator.belief.finding import Check, Data, Finding, Verdict
from isochrone.simulator.belief.measured import Run, steps_seen
from isochrone.simulator.belief.realtime import compare, spread_of
from isochrone.simulator.belief.stepfit import Steps, as_step_time, fit, predict, steps_of
from isochrone.simulator.draws import Arrivals, log_normal
from isochrone.simulator.workload import Call, Workload
from isochrone.twin.schedule import Limits
from isochrone.twin.steptime import StepTime

LONE_PROMPTS = (32, 64, 128, 256, 512, 1024)
LONE_TIMES, LONE_OUTPUT = 4, 32
LIGHT, HEAVIER = 1.0, (2.0, 6.0)
"""Requests in flight, on average and if nobody stood in anybody's way."""
LOAD_S, CALLS_MIN, CALLS_MAX = 40.0, 120, 600
"""How long a load lasts, in seconds and in calls."""
LIGHT_TOKENS, HEAVY_TOKENS = (200, 40), (300, 60)
"""Mean prompt and answer."""
PROMPT_MAX = 1024
ERROR_MAX, SPREAD_TIMES = 0.20, 2.0
SPREAD_MAX = 0.25
"""Median over the figures of two equal runs beyond which they judge nothing: twice that would excuse any error."""
DRIFT_MAX = 0.15
"""Lone calls before and after, median of the change in whole time."""
LIMITS = Limits(max_num_seqs=256, chunk_tokens=2048, block_tokens=16, kv_blocks=1_000_000)
"""vLLM's defaults; the load is too small to reach them."""
LAG_S_LONE = 1.0
"""A call of its own has too few moments to tell how late the event loop runs."""
MODELS_S_MAX = 10.0


def check(url: str) -> Check:
    """For the engine at the URL."""
    return Check("engine", f"the engine at {url}: calibrated on one load, predicted on another", lambda _: run(_, url))


def run(_: Data, url: str) -> Finding:
    """Needs no data."""
    finding = Finding(
        name="engine",
        title="A real engine on this machine",
        source=url,
        bar=f"TTFT, TPOT and E2E within {ERROR_MAX:.0%} at p50 and p90, or within {SPREAD_TIMES:g} times the spread of "
        "two runs",
        fitted=f"five step parameters and a constant a request, on {len(LONE_PROMPTS) * LONE_TIMES} lone calls and the "
        "light load",
    )
    try:
        uvloop.run(_calibrate_and_predict(finding, url.rstrip("/")))
    except (Unusable, OSError, ValueError) as problem:
        finding.headline = f"not measured: {problem}"
    return finding


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the light load says of the engine."""

    step: StepTime
    constant_s: float
    """Of each request, before its first token."""
    lone_s: np.ndarray
    """Whole time of each lone call."""

    @property
    def alone_s(self) -> float:
        return float(self.lone_s.mean())


async def _calibrate_and_predict(finding: Finding, url: str) -> None:
    model = served_model(url)
    known = await _calibrated(finding, url, model)
    results: list[tuple[float, bool]] = []
    spreads: list[float] = []
    for times in HEAVIER:
        heavy = poisson(f"heavy {times}", times / known.alone_s, HEAVY_TOKENS)
        asks = [Ask(call.at / 1e9, call.prompt_tokens, call.output_tokens) for call in heavy.calls]
        ours = later(serve(LIMITS, known.step, asks), known.constant_s)
        theirs = [await measure(url, heavy, model, salt) for salt in ("first", "second")]
        label = f"{model}, {times / LIGHT:g} times the load, {len(asks)} calls"
        results += compare(finding, label, theirs, ours, ERROR_MAX, SPREAD_TIMES)
        spreads += spread_of(theirs)
    after, _ = await _lone(url, model, "after")
    drift = float(np.median(np.abs(after.e2e_s / known.lone_s - 1)))
    held = sum(holds for _, holds in results)
    finding.headline = f"{held} of {len(results)} figures hold; worst {max(results)[0]:.1%}"
    finding.notes.append(
        f"two equal runs differ by {np.median(spreads):.0%} (median), {max(spreads):.0%} at most; lone calls after by "
        f"{drift:.0%} from those before"
    )
    judge(finding, all(holds for _, holds in results), float(np.median(spreads)), drift)


def judge(finding: Finding, held: bool, spread: float, drift: float) -> None:
    """Sets the verdict; none where the machine was too noisy, whatever came out."""
    if spread > SPREAD_MAX or drift > DRIFT_MAX:
        finding.verdict = Verdict.NOT_RUN
        finding.headline = (
            f"this machine was too noisy to judge: two equal runs differ by {spread:.0%} (at most {SPREAD_MAX:.0%}), "
            f"lone calls by {drift:.0%} (at most {DRIFT_MAX:.0%}). For what it is worth: {finding.headline}"
        )
        return
    finding.verdict = Verdict.of(held)


async def _calibrated(finding: Finding, url: str, model: str) -> Calibration:
    lone, lone_calls = await _lone(url, model, "before")
    alone_s = float(np.mean(lone.e2e_s))
    constant_s = outside(lone_calls, lone)
    light = poisson("light", LIGHT / alone_s, LIGHT_TOKENS)
    light_served = await measure(url, light, model, "light")
    bare = [later(one, -constant_s) for one in (lone, light_served)]
    steps = joined([lone_steps(lone_calls, bare[0]), steps_seen(as_run(light, bare[1]), range(len(light.calls)))])
    theta = fit(steps)
    error = float(np.median(np.abs(predict(theta, steps) / steps.seconds - 1)))
    floor, a, b, k, q = theta
    finding.notes += [
        f"fitted: floor {floor * 1e3:.3g} ms, a {a * 1e3:.3g} ms, b {b * 1e6:.3g} us a token, k {k * 1e9:.3g} ns a "
        f"context token, q {q * 1e9:.3g} ns a pair, {constant_s * 1e3:.3g} ms a request; median error on the "
        f"calibration itself {error:.1%}",
        f"a lone call takes {alone_s:.2f} s on average; calls came at {LIGHT / alone_s:.2f}/s for the calibration",
    ]
    return Calibration(as_step_time(theta), constant_s, lone.e2e_s)


def outside(calls: Sequence[Call], lone: Served) -> float:
    """Seconds of a request that no step accounts for: the shortest prompt's TTFT less a decode step, for so short a
    prompt takes about as long. Medians."""
    shortest = np.array([call.prompt_tokens for call in calls]) == min(LONE_PROMPTS)
    return max(0.0, float(np.median(lone.ttft_s[shortest]) - np.median(lone.tpot_s[shortest])))


def later(served: Served, constant_s: float) -> Served:
    """Every token so much later."""
    return Served(served.ttft_s + constant_s, served.e2e_s + constant_s, served.output)


def served_model(url: str) -> str:
    """The engine's first model."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=MODELS_S_MAX) as answer:
        return str(json.load(answer)["data"][0]["id"])


async def _lone(url: str, model: str, salt: str) -> tuple[Served, list[Call]]:
    """One call at a time; the first ones of all warm the engine up and are forgotten."""
    calls, found = [], []
    for number in range(-1, LONE_TIMES):
        for prompt in LONE_PROMPTS:
            call = Call(0, prompt, LONE_OUTPUT)
            served = await measure(url, Workload("lone", [call]), model, f"{salt} {number} {prompt}", LAG_S_LONE)
            if number >= 0:
                calls.append(call)
                found.append(served)
    columns = [
        np.concatenate(column) for column in zip(*((one.ttft_s, one.e2e_s, one.output) for one in found), strict=True)
    ]
    return Served(*columns), calls


def poisson(name: str, rate: float, mean_tokens: tuple[int, int]) -> Workload:
    """Calls of varied lengths."""
    count = min(CALLS_MAX, max(CALLS_MIN, round(rate * LOAD_S)))
    chance = random.Random(name)
    arrivals = Arrivals(chance, rate)
    prompt, output = mean_tokens
    calls = [
        Call(arrivals.next(), min(PROMPT_MAX, log_normal(chance, prompt, 0.8)), 2 + log_normal(chance, output, 0.5))
        for _ in range(count)
    ]
    return Workload(name, calls)


def as_run(workload: Workload, served: Served) -> Run:
    """Measured calls as `measured.py` reads them. When each was scheduled is unknown, and not needed for its steps."""
    at = np.array([call.at / 1e9 for call in workload.calls])
    prompt = np.array([call.prompt_tokens for call in workload.calls])
    return Run(prompt, served.output, at, at, at + served.ttft_s, at + served.e2e_s)


def lone_steps(calls: Sequence[Call], served: Served) -> Steps:
    """Two rows for each lone call: its prefill, and the mean of its decode steps."""
    rows: list[tuple[float, float, float, float]] = []
    for call, ttft_s, tpot_s in zip(calls, served.ttft_s.tolist(), served.tpot_s.tolist(), strict=True):
        prompt = call.prompt_tokens
        rows.append((prompt, 0.0, prompt * prompt / 2, ttft_s))
        rows.append((1.0, prompt + call.output_tokens / 2, 0.0, tpot_s))
    return steps_of(rows)


def joined(parts: Sequence[Steps]) -> Steps:
    """All rows."""
    names = ("weights", "tokens", "kv_read", "pairs", "seconds")
    return Steps(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
