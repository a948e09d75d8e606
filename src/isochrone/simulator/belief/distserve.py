"""Check: DistServe's attainment curve of vLLM (OSDI'24, OPT-13B on one A100-80GB, ShareGPT, Poisson arrivals).

Attainment: share of requests with a TTFT within 0.25 s and a mean gap within 0.1 s. Steps are those that the authors'
own fits give for vLLM, and what their simulator adds for Ray in each step. The engine is vLLM 0.2.3 as their scripts
start it: prompts first and whole, all decoding waits (`twin/prompts_first.py`).

The lengths are ShareGPT's, but not theirs. Theirs are a conversation up to a random turn, and the turn after it; those
that are public here are mostly first questions and their answers. So they are stretched to the paper's mean prompt and
answer, and what is too long for the context is dropped, as their script drops it.
"""

import dataclasses
import random
from collections.abc import Sequence

import numpy as np

from isochrone.simulator.belief import steprows
from isochrone.simulator.belief.alone import Ask, serve
from isochrone.simulator.belief.finding import Check, Data, Finding, Row, Verdict, compared
from isochrone.simulator.belief.stepfit import as_step_time, fit, predict
from isochrone.simulator.draws import Arrivals
from isochrone.simulator.lengths import read_lengths
from isochrone.twin.prompts_first import PromptsFirstEngine
from isochrone.twin.schedule import Limits
from isochrone.twin.steptime import StepTime

LENGTHS = "sharegpt_val_10k_lengths.jsonl.gz"
FIT_ROWS = ("fit", "facebook/opt-13b", "1", "vllm (DistServe 2024)")
"""Kind, model, TP, engine."""
PUBLISHED = {0.25: 0.90, 0.5: 0.90, 1.0: 0.85, 1.5: 0.81, 2.0: 0.71, 2.25: 0.70, 2.5: 0.68, 3.0: 0.55}
"""Requests a second -> attainment, from the artifact's notebook."""
TTFT_S, TPOT_S = 0.25, 0.1
CONTEXT_TOKENS = 2048
"""OPT's context; longer requests are left out."""
KV_TOKENS = 64_000
"""(0.95 x 79.2 GiB - 26 GB of weights - 2 GB for activations) / 819,200 bytes a token."""
LIMITS = Limits(1024, chunk_tokens=16_384, block_tokens=16, kv_blocks=KV_TOKENS // 16, whole_prompts=True)
"""As the authors start it (evaluation/2-benchmark-serving/2-start-api-server.py)."""
RAY_S, RAY_TOKEN_S = 0.002, 1e-7
"""What their simulator adds to each step of a worker behind Ray, and for each token of context in it
(simdistserve/base/worker.py)."""
PAPER_PROMPT, PAPER_OUTPUT = 755.5, 200.3
"""Mean tokens of the paper's ShareGPT requests (table 2)."""
REQUESTS = 100
"""Of each published rate. So few that another draw of them moves the share by some points."""
SEEDS = 60
STRETCHES = 60
"""Rounds of the search for the factors."""
POINTS_MAX = 0.10


def run(data: Data) -> Finding:
    finding = Finding(
        name="distserve",
        title="SLO attainment of vLLM, OPT-13B on one A100, by rate",
        source=f"DistServe OSDI'24, artifact notebook; {steprows.FILE}, {LENGTHS}",
        bar=f"within {POINTS_MAX * 100:.0f} points at every rate",
        fitted="nothing of the curve; the twin's form to the authors' own fits of step times; lengths to the paper's "
        "mean prompt and answer",
    )
    step, error = steps_of_opt(data)
    lengths = [(prompt, output) for prompt, output, _ in read_lengths(data.path(LENGTHS))]
    longer, factors = stretched(lengths)
    gaps = []
    for rate, published in PUBLISHED.items():
        runs = attainments(step, longer, rate)
        ours = float(runs.mean())
        gaps.append(abs(ours - published))
        verdict = Verdict.of(gaps[-1] <= POINTS_MAX)
        what = f"attainment at {rate:g}/s, runs of {REQUESTS} spread by {runs.std():.0%}"
        finding.rows.append(compared(what, published, ours, "", verdict))
    short = within_context(lengths)
    for rate, published in PUBLISHED.items():
        ours = float(attainments(step, short, rate).mean())
        finding.rows.append(compared(f"... lengths as they are public, at {rate:g}/s", published, ours, ""))
    for label, some in (("our", longer), ("the public", short)):
        ceiling = float(np.mean([alone_is_good(step, *one) for one in some]))
        finding.rows.append(Row(f"share of {label} lengths whose TTFT is good on an idle engine", None, ceiling, ""))
    near = sum(gap <= POINTS_MAX for gap in gaps)
    finding.verdict = Verdict.of(near == len(gaps))
    finding.headline = (
        f"within {POINTS_MAX * 100:.0f} points at {near} of {len(gaps)} rates; gap {min(gaps) * 100:.0f} to "
        f"{max(gaps) * 100:.0f} points"
    )
    prompts = np.array([prompt for prompt, _ in short])
    finding.notes += [
        f"public prompts within the context have a mean of {prompts.mean():.0f} tokens, the paper's "
        f"{PAPER_PROMPT:.0f}: prompts are made {factors[0]:.0f} times and answers {factors[1]:.2f} times as long, and "
        f"the {len(longer):,} of {len(lengths):,} that fit the context are kept: means as published, the shape a guess",
        f"each published point is one run of {REQUESTS} requests; ours is the mean of {SEEDS} such runs",
        f"the twin's form differs from the authors' fits by {error:.1%} (median)",
    ]
    return finding


def steps_of_opt(data: Data) -> tuple[StepTime, float]:
    """The twin's form fitted to the authors' fits, behind Ray, and the median error of the fit."""
    groups, _ = steprows.read_groups(data.path(steprows.FILE))
    for key, group in groups.items():
        if (key.kind, key.model, key.tp, key.engine) == FIT_ROWS:
            steps = group.whole()
            theta = fit(steps)
            bare, error = as_step_time(theta), float(np.median(np.abs(predict(theta, steps) / steps.seconds - 1)))
            ray = {"token_s": bare.token_s + RAY_TOKEN_S, "kv_token_s": bare.kv_token_s + RAY_TOKEN_S}
            return dataclasses.replace(bare, overhead_s=RAY_S, **ray), error
    raise ValueError(f"{steprows.FILE} has no rows of {' '.join(FIT_ROWS)}")


def attainments(step: StepTime, lengths: Sequence[tuple[int, int]], rate: float) -> np.ndarray:
    """Of SEEDS runs."""
    return np.array([attainment(step, lengths, rate, seed) for seed in range(SEEDS)])


def attainment(step: StepTime, lengths: Sequence[tuple[int, int]], rate: float, seed: int) -> float:
    """Share of REQUESTS requests with good latencies."""
    chance = random.Random(f"distserve {rate} {seed}")
    arrivals = Arrivals(chance, rate)
    asks = [Ask(arrivals.next() / 1e9, *chance.choice(lengths)) for _ in range(REQUESTS)]
    served = serve(LIMITS, step, asks, PromptsFirstEngine)
    good = (served.ttft_s <= TTFT_S) & (np.nan_to_num(served.tpot_s) <= TPOT_S)
    return float(good.mean())


def within_context(lengths: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """As the authors' script drops what is too long."""
    return [(prompt, output) for prompt, output in lengths if prompt + output < CONTEXT_TOKENS]


def stretched(lengths: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], tuple[float, float]]:
    """Requests with prompts and answers longer by two factors, those within the context, such that their means are the
    paper's; and the factors. Each round moves the factors by the root of what is missing, for what is dropped changes
    the means again."""
    columns = np.array(lengths, dtype=float)
    wanted, factors = np.array([PAPER_PROMPT, PAPER_OUTPUT]), np.ones(2)
    for _ in range(STRETCHES):
        longer = np.maximum(1, np.round(columns * factors))
        kept = longer[longer.sum(axis=1) < CONTEXT_TOKENS]
        factors = factors * np.sqrt(wanted / kept.mean(axis=0))
    return [(int(prompt), int(output)) for prompt, output in kept], (float(factors[0]), float(factors[1]))


def alone_is_good(step: StepTime, prompt: int, _output: int) -> bool:
    """Its prompt alone in a step."""
    return step.seconds(prompt, 0, prompt * prompt / 2) <= TTFT_S


CHECK = Check("distserve", "DistServe's attainment curve of vLLM, OPT-13B", run)
