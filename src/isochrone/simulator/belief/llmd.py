"""Check: llm-d's prefix-routing reports, both clusters, four schedulers, every rate.

The simulator runs the ladder as published, with step times from elsewhere (nothing of the reports), and one constant a
cluster for what lies between client and engine: connection, gateway, tokenizer.
"""

import csv
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from isochrone.nouns.settings import Settings
from isochrone.simulator.belief import steprows
from isochrone.simulator.belief.finding import Check, Data, Finding, Row, Verdict, compared
from isochrone.simulator.belief.llmd_ladder import OUTPUT_TOKENS, Ladder, ladders, workload
from isochrone.simulator.belief.llmd_policies import SCRAPE_INTERVAL_S
from isochrone.simulator.belief.stepfit import as_step_time, fit
from isochrone.simulator.fleet import Fleet, Member
from isochrone.simulator.run import Plan, simulate
from isochrone.twin.profiles import PROFILES, Profile
from isochrone.twin.steptime import StepTime

FILE = "published_llmd_prefix_routing.csv"
QWEN_ROWS = ("measured_serving", "h100_sxm", "Qwen/Qwen3-32B", "2", "vllm 0.12.0", "")
"""Kind, GPU, model, TP, engine, precision of the rows that the Qwen3-32B steps are fitted to: whole servers."""
SLOTS, CHUNK_TOKENS = 1024, 8192
"""vLLM's defaults for a server on an H100."""
PRECISE = "precise-scheduling"
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


Curves = dict[str, list[Step]]
"""Scheduler -> its steps, by rate."""


def run(data: Data) -> Finding:
    finding = Finding(
        name="llm-d",
        title="llm-d's prefix-routing ladders: TTFT p90 and throughput at every rate",
        source=f"{FILE}: llm-d-kv-cache benchmarking reports; step times from {steprows.FILE}",
        bar=f"order of schedulers (TTFT p90) as published wherever their gap exceeds {GAP_MIN:.0%}; TTFT p90 within a "
        f"factor {FACTOR_MAX:g} at {STEPS_SHARE_MIN:.0%} of the steps below saturation (p90 of {SATURATED_S:g} s); "
        f"saturation rate within {SATURATION_ERROR_MAX:.0%}",
        fitted="one constant a cluster, added to every TTFT: published less simulated mean TTFT of the precise "
        "scheduler at the lowest rate",
    )
    published = read(data.path(FILE))
    steps = {"73": qwen_steps(data), "37": PROFILES["h100-70b-tp4"].step}
    tally = Tally()
    for ladder, step in zip(ladders(), steps.values(), strict=True):
        theirs = published[ladder.experiment]
        ours = {name: simulated(ladder, step, policy) for name, policy in ladder.schedulers.items()}
        constant_s = max(0.0, theirs[PRECISE][0].ttft_mean_s - ours[PRECISE][0].ttft_mean_s)
        ours = {name: [_later(one, constant_s) for one in curve] for name, curve in ours.items()}
        finding.notes.append(f"{ladder.label}: the constant is {constant_s * 1e3:.0f} ms")
        _compare(finding, tally, ladder, theirs, ours)
    finding.verdict = Verdict.of(tally.holds)
    finding.headline = tally.said
    finding.notes += [
        f"steps: Qwen3-32B fitted to {' '.join(QWEN_ROWS[1:5])} of {steprows.FILE}; Llama-3.1-70B is the profile "
        "h100-70b-tp4",
        f"{SLOTS:,} slots and chunks of {CHUNK_TOKENS:,} tokens, vLLM's defaults on an H100: the reports do not say",
        "answers have 1,000 tokens as configured; published output tokens over published rates come to less, and the "
        "less the higher the rate, so that throughputs are shown without a bar",
        "each step begins when all before it has ended; the two steps that the constants are taken from do not count",
    ]
    return finding


def read(path: str) -> dict[str, Curves]:
    """Published steps by experiment and scheduler; the sums over all rates are left aside."""
    found: dict[str, Curves] = {}
    with open(path, newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["qps"] == "all":
                continue
            step = Step(
                float(row["qps"]), float(row["ttft_p90_s"]), float(row["ttft_mean_s"]), float(row["output_tok_s"])
            )
            found.setdefault(row["experiment"], {}).setdefault(row["scheduler"], []).append(step)
    return {
        experiment: {name: sorted(curve, key=_by_rate) for name, curve in curves.items()}
        for experiment, curves in found.items()
    }


def _by_rate(step: Step) -> float:
    return step.qps


def qwen_steps(data: Data) -> StepTime:
    groups, _ = steprows.read_groups(data.path(steprows.FILE))
    for key, group in groups.items():
        if (key.kind, key.gpu, key.model, key.tp, key.engine, key.precision) == QWEN_ROWS:
            return as_step_time(fit(group.whole()))
    raise ValueError(f"{steprows.FILE} has no rows of {' '.join(QWEN_ROWS)}")


def simulated(ladder: Ladder, step: StepTime, policy: str) -> list[Step]:
    """The ladder under one policy."""
    calls, steps = workload(ladder)
    profile = Profile("llm-d", ladder.label, step, 1, ladder.kv_tokens, SLOTS, CHUNK_TOKENS)
    members = tuple(Member(f"pod-{number}", profile) for number in range(ladder.pods))
    settings = Settings(
        policy=policy, hold=False, scrape_interval_s=SCRAPE_INTERVAL_S, queue_requests_max=len(calls.calls),
        first_token_s=WAIT_S_MAX, gap_s=WAIT_S_MAX,
    )  # fmt: skip
    tally = simulate(Plan(settings, Fleet(members)), calls).tally
    due, first, ended = (np.array(column) / 1e9 for column in (tally.due, tally.first, tally.ended))
    curve = []
    for (qps, _), which in zip(ladder.steps, steps, strict=True):
        part = slice(which.start, which.stop)
        ttft = first[part] - due[part]
        span = ended[part].max() - due[part].min()
        curve.append(
            Step(qps, float(np.quantile(ttft, 0.9)), float(ttft.mean()), len(which) * OUTPUT_TOKENS / float(span))
        )
    return curve


def _later(step: Step, constant_s: float) -> Step:
    return Step(step.qps, step.ttft_p90_s + constant_s, step.ttft_mean_s + constant_s, step.tokens_per_s)


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


def _compare(finding: Finding, tally: Tally, ladder: Ladder, theirs: Curves, ours: Curves) -> None:
    for name, mine in ours.items():
        label = f"{ladder.label} {name.removesuffix('-scheduling')}"
        near = _knee(finding, label, theirs[name], mine)
        tally.knees += 1
        tally.knees_near += near
        for number, (published, found) in enumerate(zip(theirs[name], mine, strict=True)):
            counts = published.ttft_p90_s <= SATURATED_S and not (name == PRECISE and number == 0)
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
    ]


CHECK = Check("llm-d", "llm-d's prefix-routing ladders", run)
