"""llm-d's two prefix-routing ladders: clusters, prompts and rates as their reports give them.

A ladder is a warm-up and then one rate after another, each for some seconds; the load generator waits until all of a
step's requests have ended before the next step begins, and so do we, with a pause that is long enough. Prompts are
drawn up once, shuffled, and sent round and round. Answers have 1,000 tokens (`ignore_eos`).
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from isochrone.simulator.belief.llmd_policies import Blend, Estimated, Weights, named
from isochrone.simulator.workload import Call, Workload

OUTPUT_TOKENS = 1000
BLOCK_TOKENS = 64
PAUSE_S = 240.0
"""Between the last arrival of a step and the next step."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """One report."""

    experiment: str
    """As in the file of results."""
    label: str
    pods: int
    kv_tokens: int
    groups: int
    prompts: int
    shared_tokens: int
    own_tokens: int
    poisson: bool
    warm: tuple[float, float]
    """Requests a second, seconds."""
    steps: tuple[tuple[float, float], ...]
    schedulers: Mapping[str, str]
    """Name in the file -> name of our policy."""

    @property
    def prompt_tokens(self) -> int:
        return self.shared_tokens + self.own_tokens


def ladders() -> tuple[Ladder, ...]:
    """Both, with their schedulers registered as policies."""
    load = named(Blend, Weights(1.0, 1.0, 0.0))
    return (
        Ladder(
            "llm-d-kv-cache 73-capacity", "8 x Qwen3-32B TP2 H100", 8, 307_328, 150, 5, 6_000, 1_200, True, (15, 50),
            ((3, 20), (10, 20), (15, 20), (20, 38), (22, 34), (25, 30), (30, 25), (35, 21), (40, 38), (43, 36),
             (46, 33), (49, 30), (52, 29), (55, 27), (57, 26), (60, 25)),
            {
                "precise-scheduling": named(Blend, Weights(2.0, 2.0, 3.0)),
                "estimated-scheduling": named(Estimated, Weights(1.0, 1.0, 1.0)),
                "load-scheduling": load,
                "random-scheduling": "random",
            },
        ),
        Ladder(
            "llm-d-kv-cache 37-capacity", "4 x Llama-3.1-70B TP4 H100", 4, 461_376, 83, 3, 8_000, 1_000, False, (9, 30),
            ((3, 210), (4, 180), (5, 120), (6, 120), (8, 90), (10, 70), (12, 60), (15, 50), (20, 50)),
            {
                "precise-scheduling": named(Blend, Weights(1.0, 1.0, 2.0)),
                "default-scheduling": named(Estimated, Weights(1.0, 1.0, 2.0)),
                "load-scheduling": load,
                "random-scheduling": "random",
            },
        ),
    )  # fmt: skip


def workload(ladder: Ladder, seed: int = 0) -> tuple[Workload, list[range]]:
    """All calls, and which of them belong to each step; the warm-up's belong to none."""
    chance = random.Random(f"{ladder.experiment} {seed}")
    prompts = _prompts(ladder)
    chance.shuffle(prompts)
    calls: list[Call] = []
    steps: list[range] = []
    at = 0.0
    for number, (rate, seconds) in enumerate((ladder.warm, *ladder.steps)):
        began = len(calls)
        due = at
        for _ in range(round(rate * seconds)):
            due += chance.expovariate(rate) if ladder.poisson else 1 / rate
            ids = prompts[len(calls) % len(prompts)]
            calls.append(Call(round(due * 1e9), ladder.prompt_tokens, OUTPUT_TOKENS, ids=ids))
        at = due + PAUSE_S
        if number:
            steps.append(range(began, len(calls)))
    return Workload(ladder.experiment, calls, BLOCK_TOKENS), steps


def _prompts(ladder: Ladder) -> list[tuple[int, ...]]:
    """Whole blocks of each prompt; the block in which the shared part ends is the prompt's own."""
    shared, whole = ladder.shared_tokens // BLOCK_TOKENS, ladder.prompt_tokens // BLOCK_TOKENS
    made = []
    for group in range(ladder.groups):
        base = group * (shared + ladder.prompts * whole)
        prefix = tuple(range(base, base + shared))
        for prompt in range(ladder.prompts):
            own = base + shared + prompt * whole
            made.append((*prefix, *range(own, own + whole - shared)))
    return made
