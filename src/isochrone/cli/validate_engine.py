"""Check: a real engine on this machine, calibrated on one load and predicted on another.

calibration   prompts one at a time, a few sent together, then a light load: the five step parameters are fitted to
              their latencies, and what a request costs beside the steps, inside the engine and outside (connection,
              API server, tokenizer)
prediction    two and three times the load with other lengths, each sent twice with different prompts; the twin has seen
              none of it
noise         two equal runs that differ too much, or lone calls that take another time later than at first, say that
              this machine cannot judge today. Whether the prediction was right plays no part in that
misfit        a twin that does not describe the very calls that it was fitted to is a miss, whatever it predicts
"""

import json
import random
import secrets
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import uvloop

from isochrone.cli.live import LAG_S_MAX, Unusable, measure
from isochrone.simulator.belief.alone import Ask, Served
from isochrone.simulator.belief.calibration import Calibrated, as_run, calibrated, in_turn
from isochrone.simulator.belief.finding import Check, Data, Finding, Verdict
from isochrone.simulator.belief.measured import Run
from isochrone.simulator.belief.realtime import compare, spread_of
from isochrone.simulator.draws import Arrivals, log_normal
from isochrone.simulator.workload import Call, Workload
from isochrone.twin.schedule import Limits

LONE_PROMPTS = (32, 64, 128, 256, 512, 1024)
LONE_TIMES, LONE_OUTPUT = 4, 32
TOGETHER, TOGETHER_PROMPTS = (2, 4), (64, 512)
"""Calls sent at once, and their prompts' tokens: what a batch and what its context adds to a step."""
TOGETHER_TIMES, TOGETHER_OUTPUT = 2, 100
LIGHT, HEAVIER = 1.0, (2.0, 3.0)
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
"""Lone calls before, between and after, median of the change in whole time."""
MISFIT_MAX = 0.15
"""Median error on the calibration's own rows."""
LIMITS = Limits(max_num_seqs=256, chunk_tokens=2048, block_tokens=16, kv_blocks=1_000_000)
"""vLLM's defaults; the load is too small to reach them."""
LAG_S_FEW = 1.0
"""A call of its own, or a few, have too few moments to tell how late the event loop runs."""
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
        fitted=f"five step parameters and two of a request, on {len(LONE_PROMPTS) * LONE_TIMES} lone calls, "
        f"{TOGETHER_TIMES * len(TOGETHER) * len(TOGETHER_PROMPTS)} small batches and the light load",
    )
    try:
        uvloop.run(_calibrate_and_predict(finding, url.rstrip("/")))
    except (Unusable, OSError, ValueError) as problem:
        finding.headline = f"not measured: {problem}"
    return finding


@dataclass(frozen=True, slots=True)
class Engine:
    """Whom to ask."""

    url: str
    model: str
    salt: str
    """Of this run of the check: nothing of an earlier one is found in the engine's prefix cache."""

    async def run(self, workload: Workload, salt: str, lag_s_max: float = LAG_S_MAX) -> Served:
        return await measure(self.url, workload, self.model, f"{self.salt} {salt}", lag_s_max)


async def _calibrate_and_predict(finding: Finding, url: str) -> None:
    engine = Engine(url, served_model(url), secrets.token_hex(4))
    lone = await _lone(engine, "before")
    alone_s = float(lone.e2e.mean())
    known = await _calibrated(finding, engine, lone)
    lone_later = [await _lone(engine, "between")]
    results: list[tuple[float, bool]] = []
    spreads: list[float] = []
    for times in HEAVIER:
        heavy = poisson(f"heavy {times}", times / alone_s, HEAVY_TOKENS)
        ours = known.predict(LIMITS, asks_of(heavy))
        theirs = [await engine.run(heavy, salt) for salt in ("first", "second")]
        label = f"{engine.model}, {times / LIGHT:g} times the load, {len(heavy.calls)} calls"
        results += compare(finding, label, theirs, ours, ERROR_MAX, SPREAD_TIMES)
        spreads += spread_of(theirs)
    lone_later.append(await _lone(engine, "after"))
    drift = max(float(np.median(np.abs(later.e2e / lone.e2e - 1))) for later in lone_later)
    held = sum(holds for _, holds in results)
    finding.headline = f"{held} of {len(results)} figures hold; worst {max(results)[0]:.1%}"
    finding.notes.append(
        f"two equal runs differ by {np.median(spreads):.0%} (median), {max(spreads):.0%} at most; lone calls later by "
        f"{drift:.0%} from those at first"
    )
    judge(finding, all(holds for _, holds in results), float(np.median(spreads)), drift, known.misfit)


def judge(finding: Finding, held: bool, spread: float, drift: float, misfit: float) -> None:
    """Sets the verdict; none where the machine was too noisy, whatever came out."""
    if spread > SPREAD_MAX or drift > DRIFT_MAX:
        finding.verdict = Verdict.NOT_RUN
        finding.headline = (
            f"this machine was too noisy to judge: two equal runs differ by {spread:.0%} (at most {SPREAD_MAX:.0%}), "
            f"lone calls by {drift:.0%} (at most {DRIFT_MAX:.0%}). For what it is worth: {finding.headline}"
        )
        return
    if misfit > MISFIT_MAX:
        finding.headline = (
            f"the twin does not describe its own calibration: {misfit:.0%} off at the median (at most "
            f"{MISFIT_MAX:.0%}). For what it is worth: {finding.headline}"
        )
    finding.verdict = Verdict.of(held and misfit <= MISFIT_MAX)


async def _calibrated(finding: Finding, engine: Engine, lone: Run) -> Calibrated:
    alone_s = float(lone.e2e.mean())
    together = [
        await _few(engine, [Call(0, prompt, TOGETHER_OUTPUT)] * calls, f"together {time}")
        for time in range(TOGETHER_TIMES)
        for calls in TOGETHER
        for prompt in TOGETHER_PROMPTS
    ]
    light = poisson("light", LIGHT / alone_s, LIGHT_TOKENS)
    known = calibrated(lone, in_turn(together), as_run(asks_of(light), await engine.run(light, "light")))
    finding.notes += [
        f"fitted: {known}",
        f"a lone call takes {alone_s:.2f} s on average; calls came at {LIGHT / alone_s:.2f}/s for the calibration",
    ]
    return known


def served_model(url: str) -> str:
    """The engine's first model."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=MODELS_S_MAX) as answer:
        return str(json.load(answer)["data"][0]["id"])


async def _lone(engine: Engine, salt: str) -> Run:
    """One call at a time. The first of each length warm the engine up and are forgotten."""
    found = [
        await _few(engine, [Call(0, prompt, LONE_OUTPUT)], f"{salt} {time}")
        for time in range(-1, LONE_TIMES)
        for prompt in LONE_PROMPTS
    ]
    return in_turn(found[len(LONE_PROMPTS) :])


async def _few(engine: Engine, calls: Sequence[Call], salt: str) -> Run:
    """Calls that have the engine to themselves."""
    workload = Workload("few", list(calls))
    salt = f"{salt} {len(calls)} {calls[0].prompt_tokens}"
    return as_run(asks_of(workload), await engine.run(workload, salt, LAG_S_FEW))


def asks_of(workload: Workload) -> list[Ask]:
    """What reaches the engine."""
    return [Ask(call.at / 1e9, call.prompt_tokens, call.output_tokens) for call in workload.calls]


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
