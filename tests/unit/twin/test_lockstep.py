"""Ranks that step together, by hand: a step takes as long as the slowest rank's."""

import heapq

import pytest

from isochrone.nouns.instant import MILLISECOND
from isochrone.twin.lockstep import AFTER_NS, LockStep, Rank
from isochrone.twin.schedule import Limits
from isochrone.twin.sequence import TwinRequest
from isochrone.twin.skipping import Sequence, SkippingEngine
from isochrone.twin.steptime import StepTime

STEP = StepTime(floor_s=0.0, base_s=0.010, token_s=0.001, kv_token_s=0.0, pair_s=0.0, overhead_s=0.0)
"""10 ms and one for each token."""
LIMITS = Limits(max_num_seqs=8, chunk_tokens=32, block_tokens=4, kv_blocks=400)


def ranks(count: int, step: StepTime = STEP) -> list[Rank]:
    group = LockStep()
    made = [Rank(group, LIMITS, step, report_tokens=1) for _ in range(count)]
    for rank in made:
        group.replace(None, rank)
    return made


def play(engines: list[SkippingEngine], sent: list[tuple[int, int, int, int]]) -> dict[Sequence, list[int]]:
    """`sent`: (when in ms, engine, prompt, output). Row -> when each of its tokens came, in milliseconds (rounded)."""
    heap = [(at * MILLISECOND, number, one) for number, (at, *one) in enumerate(sent)]
    heapq.heapify(heap)
    told: dict[Sequence, list[int]] = {}
    while True:
        due = [(at, k) for k, engine in enumerate(engines) if (at := engine.next_event()) is not None]
        if not due and not heap:
            return told
        if due and (not heap or min(due)[0] < heap[0][0]):
            at, k = min(due)
            leap = engines[k].advance(at)
            for row in leap.told if leap is not None else ():
                told[row].append(round(at / MILLISECOND))
        else:
            at, number, (k, prompt, output) = heapq.heappop(heap)
            told[engines[k].submit(at, TwinRequest(f"r{number}", prompt, output))] = []


def test_the_slowest_rank_sets_every_step() -> None:
    """The first prefills 20 tokens (30 ms) while the second, 5 ms later, waits for the step under way; then both step.

    Step 1, 0 to 30: rank 0 alone. Step 2, to 50: rank 0 decodes (11 ms), rank 1 prefills 10 tokens (20 ms). Step 3, to
    61: both decode. Step 4, to 72: rank 1 alone.
    """
    first, second = play(list(ranks(2)), [(0, 0, 20, 3), (5, 1, 10, 3)]).values()
    assert first == [30, 50, 61]
    assert second == [50, 61, 72]


def test_alone_neither_waits_for_the_other() -> None:
    engines = [SkippingEngine(LIMITS, STEP, report_tokens=1) for _ in range(2)]
    first, second = play(engines, [(0, 0, 20, 3), (5, 1, 10, 3)]).values()
    assert first == [30, 41, 52]
    assert second == [25, 36, 47]


def test_a_rank_that_is_slow_slows_all() -> None:
    made = ranks(2)
    made[1].change_pace(0, 3.0)
    first, second = play(list(made), [(0, 0, 20, 3), (0, 1, 20, 2)]).values()
    assert first == [90, 123, 134]
    assert second == [90, 123]


def test_a_group_of_one_steps_as_if_alone() -> None:
    sent = [(7 * k, 0, 3 + 11 * k % 60, 1 + 5 * k % 17) for k in range(40)]
    (rank,) = ranks(1)
    together = play([rank], sent)
    alone = play([SkippingEngine(LIMITS, STEP, report_tokens=1)], sent)
    assert list(together.values()) == list(alone.values())
    assert rank.steps * AFTER_NS < MILLISECOND


def test_a_rank_that_left_in_mid_step_is_not_waited_for_again() -> None:
    made = ranks(2)
    group = made[0].group
    made[0].submit(0, TwinRequest("a", 20, 2))
    lost = made[1].submit(0, TwinRequest("b", 30, 2))
    assert made[0].advance(0) is None
    assert group.ends_at == 40 * MILLISECOND
    fresh = Rank(group, LIMITS, STEP)
    group.replace(made[1], fresh)
    leap = made[0].advance(40 * MILLISECOND)
    assert leap is not None
    assert [row.request.id for row in leap.told] == ["a"]
    assert lost.emitted == 0
    assert fresh.next_event() is None
    at = made[0].next_event()
    assert at == 40 * MILLISECOND + AFTER_NS
    assert made[0].advance(at) is None
    assert group.ends_at == pytest.approx(51 * MILLISECOND, abs=2)
