"""Check: llm-d's prefix-routing reports, both clusters, four schedulers, every rate.

The simulator runs the ladder as published, with kernel times from elsewhere. Constants that the reports set, each at
the lowest rate of a ladder: for each cluster what the engine's host adds to a step (mean gap of the precise scheduler)
and what lies between client and engine, connection, gateway, tokenizer (its mean TTFT); and once for both how much more
than its kernels a prompt takes, norms, rotations and launches (random less precise, Llama-3.1-70B).

Published gaps are half the real ones. The load generator of the time (inference-perf, 2025) noted a time for each line
that it read, and every token comes as a line of data and an empty one: so the median gap is 0.0000 s in every row, and
the mean is that of twice as many. Published throughputs are tokens over a step's whole time with its drain, the request
rates over the sending alone.
"""

import csv
import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from isochrone.nouns.settings import Settings
from isochrone.simulator.belief.finding import Check, Data, Finding, Row, Verdict, compared
from isochrone.simulator.belief.llmd_ladder import OUTPUT_TOKENS, Ladder, ladders, workload
from isochrone.simulator.belief.llmd_policies import SCRAPE_INTERVAL_S
from isochrone.simulator.belief.llmd_run import UNDER_WAY_MAX, LadderRun
from isochrone.simulator.fleet import Fleet, Member
from isochrone.simulator.plan import Plan
from isochrone.twin.profiles import PROFILES, Profile
from isochrone.twin.steptime import StepTime

FILE = "published_llmd_prefix_routing.csv"
KERNELS = PROFILES["h100-70b-tp4"]
"""Llama-3.1-70B on four H100, by measured kernel times."""
QWEN_WEIGHTS = (32.8 / 70.6) / (2 / 4)
"""Qwen3-32B on two cards over Llama-3.1-70B on four: parameters a card, so weights to read, and work of a token."""
QWEN_KV = (64 * 8 * 128 / 2) / (80 * 8 * 128 / 4)
"""... layers x KV heads x head size a card: bytes of KV of a token."""
QWEN_ATTENTION = (64 * 64 * 128 / 2) / (80 * 64 * 128 / 4)
"""... layers x heads x head size a card: work of an attention pair."""
TOKEN_LINES = 2
"""Lines of an answer for each token, each taken for a token by who measured the gaps."""
CALIBRATIONS = 3
"""Runs of the lowest rate to find the host's constant: a longer step also means more rows in it."""
PROMPT_FACTORS = (1.0, 2.0)
"""Where the factor on a prompt's kernels is looked for."""
HALVINGS = 5
SLOTS, CHUNK_TOKENS = 1024, 8192
"""vLLM's defaults for a server on an H100."""
PRECISE, RANDOM = "precise-scheduling", "random-scheduling"
SATURATED_S = 5.0
"""A rate is beyond saturation where the published or our TTFT p90 is longer."""
FACTOR_MAX = 2.0
STEPS_SHARE_MIN = 0.8
SATURATION_ERROR_MAX = 0.15
GAP_MIN = 0.2
WAIT_S_MAX = 3600.0


@dataclass(frozen=True, slots=True)
class Step:
    """One scheduler at one rate."""

    qps: float
    ttft_p90_s: float
    ttft_mean_s: float
    tokens_per_s: float
    """Output, from the first arrival to the last end."""
    gap_s: float
    """Mean gap between tokens."""


Curves = dict[str, list[Step]]
"""Scheduler -> its steps, by rate."""


def run(data: Data) -> Finding:
    finding = Finding(
        name="llm-d",
        title="llm-d's prefix-routing ladders: TTFT p90 and throughput at every rate",
        source=f"{FILE}: llm-d-kv-cache benchmarking reports; kernel times of the profile {KERNELS.name}",
        bar=f"order of schedulers (TTFT p90) as published wherever their gap exceeds {GAP_MIN:.0%}; TTFT p90 within a "
        f"factor {FACTOR_MAX:g} at {STEPS_SHARE_MIN:.0%} of the steps below saturation (p90 of {SATURATED_S:g} s); "
        f"saturation rate within {SATURATION_ERROR_MAX:.0%}",
        fitted="two constants a cluster, on the precise scheduler at the lowest rate: the host's time in each step "
        "(from the mean gap), and what is added to every TTFT (from the mean TTFT); a factor on the kernels of prompts "
        "once for both clusters, on random at the lowest rate of Llama-3.1-70B. Those three steps do not count",
    )
    published = read(data.path(FILE))
    tally = Tally()
    qwen, llama = ladders()
    factor = prompt_factor(llama, KERNELS.step, published[llama.experiment])
    finding.notes.append(f"prompts take {factor:.2f} times their kernels")
    for ladder, kernels, fitted in ((qwen, qwen_steps(), (PRECISE,)), (llama, KERNELS.step, (PRECISE, RANDOM))):
        theirs = published[ladder.experiment]
        step = calibrated(ladder, heavier(kernels, factor), theirs[PRECISE][0].gap_s)
        ours = {name: simulated(ladder, step, policy) for name, policy in ladder.schedulers.items()}
        constant_s = max(0.0, theirs[PRECISE][0].ttft_mean_s - ours[PRECISE][0].ttft_mean_s)
        ours = {name: [_later(one, constant_s) for one in curve] for name, curve in ours.items()}
        finding.notes.append(
            f"{ladder.label}: the host takes {step.overhead_s * 1e3:.1f} ms of each step; "
            f"{constant_s * 1e3:.0f} ms are added to every TTFT"
        )
        _compare(finding, tally, ladder, theirs, ours, fitted)
    finding.verdict = Verdict.of(tally.holds)
    finding.headline = tally.said
    finding.notes += [
        f"steps: measured kernels of Llama-3.1-70B ({KERNELS.name}); Qwen3-32B by its parameters, KV and heads a card",
        f"{SLOTS:,} slots and chunks of {CHUNK_TOKENS:,} tokens, vLLM's defaults on an H100: the reports do not say",
        "gauges as vLLM sets them, at the end of a step: a long prefill hides for as long as it lasts",
        f"at most {UNDER_WAY_MAX:,} requests under way, Envoy's default: beyond, refused and not counted",
        "published gaps are doubled: each line of an answer was taken for a token, and every other one is empty",
    ]
    return finding


def read(path: str) -> dict[str, Curves]:
    """Published steps by experiment and scheduler; the sums over all rates are left aside."""
    found: dict[str, Curves] = {}
    with open(path, newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["qps"] == "all":
                continue
            numbers = (float(row[name]) for name in ("qps", "ttft_p90_s", "ttft_mean_s", "output_tok_s", "itl_mean_s"))
            qps, ttft_p90_s, ttft_mean_s, tokens_per_s, line_gap_s = numbers
            step = Step(qps, ttft_p90_s, ttft_mean_s, tokens_per_s, line_gap_s * TOKEN_LINES)
            found.setdefault(row["experiment"], {}).setdefault(row["scheduler"], []).append(step)
    return {
        experiment: {name: sorted(curve, key=_by_rate) for name, curve in curves.items()}
        for experiment, curves in found.items()
    }


def _by_rate(step: Step) -> float:
    return step.qps


def qwen_steps() -> StepTime:
    """Qwen3-32B on two H100, from the kernels of the larger model."""
    kernels = KERNELS.step
    return StepTime(
        floor_s=kernels.floor_s * QWEN_WEIGHTS,
        base_s=kernels.base_s * QWEN_WEIGHTS,
        token_s=kernels.token_s * QWEN_WEIGHTS,
        kv_token_s=kernels.kv_token_s * QWEN_KV,
        pair_s=kernels.pair_s * QWEN_ATTENTION,
        overhead_s=kernels.overhead_s,
    )


def heavier(step: StepTime, factor: float) -> StepTime:
    """Prompts take so many times as long."""
    return dataclasses.replace(step, token_s=step.token_s * factor, pair_s=step.pair_s * factor)


def prompt_factor(ladder: Ladder, step: StepTime, published: Curves) -> float:
    """How many times its kernels a prompt takes, such that random's mean TTFT at the lowest rate is as much longer than
    the precise scheduler's as published: by halving."""
    wanted_s = published[RANDOM][0].ttft_mean_s - published[PRECISE][0].ttft_mean_s
    lowest = dataclasses.replace(ladder, steps=ladder.steps[:1])
    step = calibrated(ladder, step, published[PRECISE][0].gap_s)
    low, high = PROMPT_FACTORS
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        random, precise = (
            simulated(lowest, heavier(step, middle), ladder.schedulers[name])[0].ttft_mean_s
            for name in (RANDOM, PRECISE)
        )
        low, high = (low, middle) if random - precise > wanted_s else (middle, high)
    return (low + high) / 2


def calibrated(ladder: Ladder, step: StepTime, gap_s: float) -> StepTime:
    """The host's time in a step such that the precise scheduler's mean gap at the lowest rate is `gap_s`."""
    lowest = dataclasses.replace(ladder, steps=ladder.steps[:1])
    for _ in range(CALIBRATIONS):
        found_s = simulated(lowest, step, ladder.schedulers[PRECISE])[0].gap_s
        step = dataclasses.replace(step, overhead_s=max(0.0, step.overhead_s + gap_s - found_s))
    return step


def simulated(ladder: Ladder, step: StepTime, policy: str) -> list[Step]:
    """The ladder under one policy. What the proxy refused does not count."""
    calls, steps = workload(ladder)
    profile = Profile("llm-d", ladder.label, step, 1, ladder.kv_tokens, SLOTS, CHUNK_TOKENS)
    members = tuple(Member(f"pod-{number}", profile) for number in range(ladder.pods))
    settings = Settings(
        policy=policy, hold=False, scrape_interval_s=SCRAPE_INTERVAL_S, queue_requests_max=len(calls.calls),
        first_token_s=WAIT_S_MAX, gap_s=WAIT_S_MAX,
    )  # fmt: skip
    tally = LadderRun(Plan(settings, Fleet(members)), calls).run().tally
    served = np.array(tally.served) == 1
    curve = []
    for (qps, _), which in zip(ladder.steps, steps, strict=True):
        part = np.array(which)[served[which.start : which.stop]]
        due, first, ended = (np.array(column)[part] / 1e9 for column in (tally.due, tally.first, tally.ended))
        ttft = first - due
        curve.append(
            Step(
                qps,
                float(np.quantile(ttft, 0.9)),
                float(ttft.mean()),
                len(part) * OUTPUT_TOKENS / float(ended.max() - due.min()),
                float((ended - first).mean()) / (OUTPUT_TOKENS - 1),
            )
        )
    return curve


def _later(step: Step, constant_s: float) -> Step:
    return dataclasses.replace(step, ttft_p90_s=step.ttft_p90_s + constant_s, ttft_mean_s=step.ttft_mean_s + constant_s)


def saturation(curve: Sequence[Step]) -> float | None:
    """The rate at which TTFT p90 passes SATURATED_S, on a straight line of its logarithm between steps."""
    for below, above in itertools.pairwise(curve):
        if below.ttft_p90_s <= SATURATED_S < above.ttft_p90_s:
            share = log(SATURATED_S / below.ttft_p90_s) / log(above.ttft_p90_s / below.ttft_p90_s)
            return below.qps + share * (above.qps - below.qps)
    return None


@dataclass(slots=True)
class Tally:
    """Counts over both clusters."""

    pairs: int = 0
    pairs_right: int = 0
    steps: int = 0
    steps_near: int = 0
    knees: int = 0
    knees_near: int = 0

    @property
    def holds(self) -> bool:
        near = self.steps_near >= STEPS_SHARE_MIN * self.steps
        return self.pairs_right == self.pairs and near and self.knees_near == self.knees

    @property
    def said(self) -> str:
        return (
            f"order right in {self.pairs_right} of {self.pairs} pairs; TTFT p90 within a factor {FACTOR_MAX:g} at "
            f"{self.steps_near} of {self.steps} steps below saturation; saturation rate near for "
            f"{self.knees_near} of {self.knees} schedulers"
        )


def _compare(
    finding: Finding, tally: Tally, ladder: Ladder, theirs: Curves, ours: Curves, fitted: Sequence[str] = (PRECISE,)
) -> None:
    """`fitted`: schedulers whose lowest rate has set a constant, and does not count."""
    for name, mine in ours.items():
        label = f"{ladder.label} {name.removesuffix('-scheduling')}"
        near = _knee(finding, label, theirs[name], mine)
        tally.knees += 1
        tally.knees_near += near
        for number, (published, found) in enumerate(zip(theirs[name], mine, strict=True)):
            counts = published.ttft_p90_s <= SATURATED_S and not (name in fitted and number == 0)
            _step(finding, tally if counts else None, label, published, found)
    for first, second in itertools.combinations(ours, 2):
        for number, pair in enumerate(zip(theirs[first], theirs[second], strict=True)):
            one, other = (step.ttft_p90_s for step in pair)
            if max(one, other) / min(one, other) - 1 <= GAP_MIN:
                continue
            tally.pairs += 1
            tally.pairs_right += (one < other) == (ours[first][number].ttft_p90_s < ours[second][number].ttft_p90_s)


def _knee(finding: Finding, label: str, theirs: Sequence[Step], ours: Sequence[Step]) -> bool:
    published, found = saturation(theirs), saturation(ours)
    if published is None or found is None:
        near = published is found
        verdict = Verdict.of(near)
        finding.rows.append(
            Row(f"{label}: saturation (none: not on the ladder)", published, found, "/s", None, verdict)
        )
        return near
    near = abs(found / published - 1) <= SATURATION_ERROR_MAX
    finding.rows.append(compared(f"{label}: saturation", published, found, "/s", Verdict.of(near)))
    return near


def _step(finding: Finding, tally: Tally | None, label: str, published: Step, ours: Step) -> None:
    verdict = Verdict.SHOWN
    if tally is not None:
        ratio = ours.ttft_p90_s / published.ttft_p90_s
        near = 1 / FACTOR_MAX <= ratio <= FACTOR_MAX
        verdict = Verdict.of(near)
        tally.steps += 1
        tally.steps_near += near
    what = f"{label} at {published.qps:g}/s"
    finding.rows += [
        compared(f"{what}: TTFT p90", published.ttft_p90_s, ours.ttft_p90_s, "s", verdict),
        compared(f"{what}: output", published.tokens_per_s, ours.tokens_per_s, "tok/s"),
        compared(f"{what}: mean gap", published.gap_s * 1e3, ours.gap_s * 1e3, "ms"),
    ]


CHECK = Check("llm-d", "llm-d's prefix-routing ladders", run)
