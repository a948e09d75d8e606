"""The plain count against a slow one, and the twin against the plain count."""

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from isochrone.simulator.belief.finding import Data
from isochrone.simulator.belief.lru import PrefixLru
from isochrone.simulator.belief.mooncake import POINTS_MAX, TRACES, plain_hits, twin_hits
from isochrone.simulator.formats import read
from isochrone.simulator.workload import Call, Workload

PROMPTS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=12)


def slow_count(prompts: Sequence[tuple[int, ...]], blocks: int) -> list[int]:
    """Prefixes as tuples in a list, oldest first."""
    held: list[tuple[int, ...]] = []
    found = []
    for prompt in prompts:
        prefixes = [prompt[: end + 1] for end in range(len(prompt))]
        hits = 0
        while hits < len(prefixes) and prefixes[hits] in held:
            hits += 1
        found.append(hits)
        for prefix in reversed(prefixes):
            if prefix in held:
                held.remove(prefix)
            held.append(prefix)
        held = held[max(0, len(held) - blocks) :]
    return found


@given(PROMPTS, st.integers(1, 12))
def test_the_plain_count(texts: list[list[int]], blocks: int) -> None:
    names: dict[tuple[int, ...], int] = {}
    prompts = [tuple(text) for text in texts]
    lru = PrefixLru(blocks)
    counted = []
    for prompt in prompts:
        ids = [names.setdefault(prompt[: end + 1], len(names)) for end in range(len(prompt))]
        counted.append(lru.use(ids))
    assert counted == slow_count(prompts, blocks)


def test_the_twin_hits_what_the_plain_count_hits() -> None:
    chance = random.Random(3)
    groups = [tuple(range(group * 100, group * 100 + 6)) for group in range(12)]
    calls = [Call(number, 6 * 16, 1, ids=chance.choice(groups)) for number in range(400)]
    workload = Workload("groups", calls, 16)
    twin, plain = sum(twin_hits(workload, 30 * 16)), sum(plain_hits(workload, 30 * 16))
    total = sum(call.prompt_tokens for call in calls)
    assert 0.05 < plain / total < 0.9
    # The twin always computes the last token, so that a whole hit is a block short.
    assert plain - 400 * 16 <= twin <= plain


def test_published_trace(data: Data) -> None:
    workload = read(data.path(TRACES[1].file))
    part = Workload(workload.name, workload.calls[:2000], workload.block_tokens)
    total = sum(call.prompt_tokens for call in part.calls)
    twin, plain = sum(twin_hits(part, 3_000_000)), sum(plain_hits(part, 3_000_000))
    assert plain > 0.05 * total
    assert abs(twin - plain) / total <= POINTS_MAX
