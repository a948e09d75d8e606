"""Check: a real engine on this machine, calibrated on one load and predicted on another.

calibration   prompts one at a time, then a light load: the five step parameters are fitted to their latencies
prediction    twice the load with other lengths, sent twice with different prompts; the twin has seen none of it
"""

import json
import random
import urllib.request
from collections.abc import Sequence

import numpy as np
import uvloop

from isochrone.cli.live import Unusable, measure
from isochrone.simulator.belief.alone import Ask, Served, serve
from isochrone.simulator.belief.finding import Check, Data, Finding, Verdict
from isochrone.simulator.belief.measured import Run, steps_seen
from isochrone.simulator.belief.realtime import compare
from isochrone.simulator.belief.stepfit import Steps, as_step_time, fit, predict, steps_of
from isochrone.simulator.draws import Arrivals, log_normal
from isochrone.simulator.workload import Call, Workload
from isochrone.twin.schedule import Limits

LONE_PROMPTS = (32, 64, 128, 256, 512, 1024)
LONE_TIMES, LONE_OUTPUT = 2, 32
LIGHT, HEAVIER = 1.0, (2.0, 6.0)
"""Requests in flight, on average and if nobody stood in anybody's way."""
LOAD_S, CALLS_MIN, CALLS_MAX = 15.0, 60, 400
"""How long a load lasts, in seconds and in calls."""
LIGHT_TOKENS, HEAVY_TOKENS = (200, 40), (300, 60)
"""Mean prompt and answer."""
PROMPT_MAX = 1024
ERROR_MAX, SPREAD_TIMES = 0.20, 2.0
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
        fitted=f"five step parameters, on {len(LONE_PROMPTS) * LONE_TIMES} lone calls and the light load",
    )
    try:
        uvloop.run(_calibrate_and_predict(finding, url.rstrip("/")))
    except (Unusable, OSError, ValueError) as problem:
        finding.headline = f"not measured: {problem}"
    return finding


async def _calibrate_and_predict(finding: Finding, url: str) -> None:
    model = served_model(url)
    lone, lone_calls = await _lone(url, model)
    alone_s = float(np.mean(lone.e2e_s))
    light = poisson("light", LIGHT / alone_s, LIGHT_TOKENS)
    light_served = await measure(url, light, model, "light")
    steps = joined([lone_steps(lone_calls, lone), steps_seen(as_run(light, light_served), range(len(light.calls)))])
    theta = fit(steps)
    error = float(np.median(np.abs(predict(theta, steps) / steps.seconds - 1)))
    results = []
    for times in HEAVIER:
        heavy = poisson(f"heavy {times}", times / alone_s, HEAVY_TOKENS)
        asks = [Ask(call.at / 1e9, call.prompt_tokens, call.output_tokens) for call in heavy.calls]
        ours = serve(LIMITS, as_step_time(theta), asks)
        theirs = [await measure(url, heavy, model, salt) for salt in ("first", "second")]
        label = f"{model}, {times / LIGHT:g} times the load, {len(asks)} calls"
        results += compare(finding, label, theirs, ours, ERROR_MAX, SPREAD_TIMES)
    held = sum(holds for _, holds in results)
    finding.verdict = Verdict.of(held == len(results))
    finding.headline = f"{held} of {len(results)} figures hold; worst {max(results)[0]:.1%}"
    floor, a, b, k, q = theta
    finding.notes += [
        f"fitted: floor {floor * 1e3:.3g} ms, a {a * 1e3:.3g} ms, b {b * 1e6:.3g} us a token, k {k * 1e9:.3g} ns a "
        f"context token, q {q * 1e9:.3g} ns a pair; median error on the calibration itself {error:.1%}",
        f"a lone call takes {alone_s:.2f} s on average; calls came at {LIGHT / alone_s:.2f}/s for the calibration",
    ]


def served_model(url: str) -> str:
    """The engine's first model."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=MODELS_S_MAX) as answer:
        return str(json.load(answer)["data"][0]["id"])


async def _lone(url: str, model: str) -> tuple[Served, list[Call]]:
    """One call at a time; the first ones of all warm the engine up and are forgotten."""
    calls, found = [], []
    for number in range(-1, LONE_TIMES):
        for prompt in LONE_PROMPTS:
            call = Call(0, prompt, LONE_OUTPUT)
            served = await measure(url, Workload("lone", [call]), model, f"lone {number} {prompt}", LAG_S_LONE)
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
