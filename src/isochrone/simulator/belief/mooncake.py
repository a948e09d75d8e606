"""Check: prefix-cache hit ratios on Mooncake's traces (FAST'25, figures 9 and 10).

Figure 9: one cache of 3 million tokens, prompts in order of arrival; its hits as a share of what an endless cache
would have. Figure 10: ten instances with 3 million tokens each, each prompt sent to the longest match, against one pool
of all their memory; how many times the hits.

Ours are the simulator's: its twins with answers of one token, and for figure 10 its Cluster with Mooncake's policy.
They are held against a plain LRU written apart. The paper counts blocks of 256 tokens, the traces have 512.
"""

from dataclasses import dataclass

import numpy as np

from isochrone.nouns.settings import Settings
from isochrone.simulator.belief.finding import Check, Data, Finding, Row, Verdict, compared
from isochrone.simulator.belief.lru import PrefixLru
from isochrone.simulator.fleet import Fleet, Member
from isochrone.simulator.formats import read
from isochrone.simulator.plan import Plan
from isochrone.simulator.run import simulate
from isochrone.simulator.workload import Call, Workload
from isochrone.twin.profiles import PROFILES, Profile
from isochrone.twin.steptime import StepTime

CAPACITY_TOKENS = 3_000_000
NODES = 10
POINTS_MAX = 0.02
"""Two points of hit ratio between the twin and a plain count."""
QUICK_S = 1e-8
"""For figure 9 steps take next to no time, so that no prompt is in memory together with the next one."""
POLICY = "mooncake"
INDEX_BLOCKS = 2_000_000
PUBLISHED_ERROR_MAX = 0.2
"""Relative, for rows against the paper."""


@dataclass(frozen=True, slots=True)
class Published:
    """What the paper says of one trace."""

    file: str
    label: str
    ceiling: float
    """Hit ratio of an endless cache (table 2)."""
    share: float
    """... and the share of it that 3 million tokens reach (figure 9)."""
    times: float
    """Hits of a global pool over those of local caches (figure 10)."""
    prefill: float
    """Prefill GPU time, global over local (figure 10)."""


TRACES = (
    Published("mooncake_conversation.jsonl.gz", "conversation", 0.40, 0.41, 2.22, 0.76),
    Published("mooncake_synthetic.jsonl.gz", "synthetic", 0.66, 0.46, 2.36, 0.52),
)


def run(data: Data) -> Finding:
    finding = Finding(
        name="mooncake",
        title="Prefix-cache hit ratios on Mooncake's traces",
        source="Mooncake FAST'25, figures 9 and 10 and table 2; " + ", ".join(one.file for one in TRACES),
        bar=f"twins within {POINTS_MAX * 100:.0f} points of hit ratio of a plain LRU count, one cache and ten; "
        f"rows against the paper within {PUBLISHED_ERROR_MAX:.0%}",
        fitted="nothing",
    )
    gaps, said = [], []
    for published in TRACES:
        workload = read(data.path(published.file))
        gaps.append(_figure_9(finding, published, workload))
        gaps.append(_figure_10(finding, published, workload))
        said.append(f"{published.label}: " + ", ".join(_short(row) for row in finding.rows[-2:]))
    missed = sum(row.verdict is Verdict.MISSES for row in finding.rows)
    finding.verdict = Verdict.of(max(gaps) <= POINTS_MAX)
    finding.headline = (
        f"largest gap between twins and plain count {max(gaps) * 100:.1f} points; {missed} of {len(finding.rows)} rows "
        f"miss, those against figure 10: {'; '.join(said)}"
    )
    profile = PROFILES["h100-70b-tp4"].name
    finding.notes += [
        "figure 9: one twin, each prompt alone on it, answers of one token; the ceiling is a plain count without limit",
        f"figure 10: {NODES} twins of {profile}, a stand-in for eight A800, under our Cluster with policy {POLICY}; "
        "the plain count of the local caches takes each prompt where the Cluster has put it; the global pool is a "
        "plain LRU of their whole memory; prefill time is what was not cached, by that profile",
        "the paper counts 256-token blocks, the traces have 512",
    ]
    return finding


def _short(row: Row) -> str:
    assert row.ours is not None
    assert row.published is not None
    return f"{row.ours:.2f}x ({row.published:.2f}x)"


def _hit_ratio(calls: list[Call], hit_tokens: float) -> float:
    return hit_tokens / sum(call.prompt_tokens for call in calls)


def plain_hits(workload: Workload, capacity_tokens: int | None) -> list[int]:
    """Hit tokens of each call in one plain cache; None: without limit."""
    size = workload.block_tokens
    lru = PrefixLru(capacity_tokens // size if capacity_tokens is not None else 1 << 60)
    return [min(lru.use(call.ids) * size, call.prompt_tokens - 1) for call in workload.calls]


def twin_hits(workload: Workload, capacity_tokens: int) -> list[int]:
    """Hit tokens of each call on one twin, a prompt at a time."""
    quick = StepTime(QUICK_S, 0.0, 0.0, 0.0, 0.0, overhead_s=0.0)
    profile = _profile(PROFILES["h100-70b-tp4"], workload, capacity_tokens, quick)
    spread = [_alone(call, number) for number, call in enumerate(workload.calls)]
    plan = Plan(Settings(policy="round-robin"), Fleet((Member("one", profile),)))
    outcome = simulate(plan, Workload(workload.name, spread, workload.block_tokens))
    return list(outcome.tally.cached)


def _alone(call: Call, number: int) -> Call:
    """A millisecond after the one before: longer than any prompt takes on a quick twin."""
    return Call(number * 1_000_000, call.prompt_tokens, 1, ids=call.ids)


def _profile(base: Profile, workload: Workload, capacity_tokens: int, step: StepTime) -> Profile:
    longest = max(call.prompt_tokens for call in workload.calls)
    return Profile(
        name="mooncake", about="a node of the check", step=step, kv_bytes_per_token=base.kv_bytes_per_token,
        kv_tokens=capacity_tokens, max_num_seqs=base.max_num_seqs, chunk_tokens=8192, max_model_len=longest + 2,
    )  # fmt: skip


def _against_paper(what: str, published: float, ours: float, unit: str = "") -> Row:
    return compared(what, published, ours, unit, Verdict.of(abs(ours / published - 1) <= PUBLISHED_ERROR_MAX))


def _against_count(what: str, plain: float, twin: float) -> Row:
    return compared(what, plain, twin, "", Verdict.of(abs(twin - plain) <= POINTS_MAX))


def _figure_9(finding: Finding, published: Published, workload: Workload) -> float:
    calls = workload.calls
    ceiling = _hit_ratio(calls, sum(plain_hits(workload, None)))
    plain = _hit_ratio(calls, sum(plain_hits(workload, CAPACITY_TOKENS)))
    twin = _hit_ratio(calls, sum(twin_hits(workload, CAPACITY_TOKENS)))
    label = f"fig. 9 {published.label}"
    finding.rows += [
        _against_count(f"{label}: hit ratio, plain LRU | twin", plain, twin),
        _against_paper(f"{label}: ceiling of the hit ratio", published.ceiling, ceiling),
        _against_paper(f"{label}: share of the ceiling at 3M tokens", published.share, twin / ceiling),
    ]
    return abs(twin - plain)


def _figure_10(finding: Finding, published: Published, workload: Workload) -> float:
    """The gap between twins and plain count."""
    prompts = np.array([call.prompt_tokens for call in workload.calls])
    step = PROFILES["h100-70b-tp4"].step
    local, placed = _local_hits(workload, POLICY)
    scattered, _ = _local_hits(workload, "random")
    plain = _placed_hits(workload, placed)
    pooled = np.array(plain_hits(workload, NODES * CAPACITY_TOKENS))
    label = f"fig. 10 {published.label}"
    gap = abs(float(local.sum() - plain.sum())) / float(prompts.sum())
    prefill = _prefill_s(step, prompts, pooled) / _prefill_s(step, prompts, local)
    total = float(prompts.sum())
    random_times = float(pooled.sum() / scattered.sum())
    finding.rows += [
        _against_count(
            f"{label}: hit ratio of local caches, plain LRU | twins", plain.sum() / total, local.sum() / total
        ),
        Row(f"{label}: hits, global pool over local caches, placed at random", None, random_times, "x"),
        _against_paper(f"{label}: hits, global pool over local", published.times, pooled.sum() / local.sum(), "x"),
        _against_paper(f"{label}: prefill time, global over local", published.prefill, prefill, "x"),
    ]
    return gap


def _local_hits(workload: Workload, policy: str) -> tuple[np.ndarray, np.ndarray]:
    """Hit tokens of each call on ten twins under our Cluster, and the twin that it went to."""
    calls = [Call(call.at, call.prompt_tokens, 1, ids=call.ids) for call in workload.calls]
    base = PROFILES["h100-70b-tp4"]
    profile = _profile(base, workload, CAPACITY_TOKENS, base.step)
    members = tuple(Member(f"node-{number}", profile) for number in range(NODES))
    settings = Settings(policy=policy, prefix_blocks_max=INDEX_BLOCKS)
    outcome = simulate(Plan(settings, Fleet(members)), Workload(workload.name, calls, workload.block_tokens))
    return np.array(outcome.tally.cached), np.array(outcome.tally.placed)


def _placed_hits(workload: Workload, placed: np.ndarray) -> np.ndarray:
    """The same by a plain count, each prompt where it was placed."""
    size = workload.block_tokens
    caches = [PrefixLru(CAPACITY_TOKENS // size) for _ in range(NODES)]
    hits = [
        min(caches[node].use(call.ids) * size, call.prompt_tokens - 1)
        for call, node in zip(workload.calls, placed.tolist(), strict=True)
    ]
    return np.array(hits)


def _prefill_s(step: StepTime, prompts: np.ndarray, hits: np.ndarray) -> float:
    fresh = prompts - hits
    return float((step.token_s * fresh + step.pair_s * fresh * (prompts - fresh / 2)).sum())


CHECK = Check("mooncake", "hit ratios on Mooncake's traces, figures 9 and 10", run)
