"""The engine that skips steps against the one that walks through them."""

import dataclasses
import heapq
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.nouns.instant import MILLISECOND
from isochrone.twin.engine import Engine
from isochrone.twin.prompts_first import PromptsFirstEngine, PromptsFirstScheduler, fit_together, padded_work
from isochrone.twin.schedule import Limits
from isochrone.twin.sequence import TwinRequest
from isochrone.twin.skipping import SkippingEngine
from isochrone.twin.steptime import StepTime

STEP = StepTime(floor_s=0.004, base_s=0.002, token_s=0.0001, kv_token_s=0.00001, pair_s=0.000001, overhead_s=0.001)
BLOCK = 4

calls = st.lists(
    st.tuples(
        st.integers(0, 400),  # ms after the one before
        st.integers(1, 150),  # prompt
        st.integers(1, 90),  # output
        st.integers(0, 3),  # family of prompts that begin alike
        st.integers(0, 30),  # blocks shared within the family
        st.one_of(st.none(), st.integers(1, 600)),  # ms until its client leaves
    ),
    min_size=1,
    max_size=25,
)


def hashes(number: int, prompt: int, family: int, shared: int) -> list[int]:
    blocks = prompt // BLOCK
    return [family * 1000 + k if k < shared else 100_000 + number * 1000 + k for k in range(blocks)]


def story(engine: Engine | SkippingEngine, rows: list[tuple], caches: bool = True) -> tuple[dict[str, tuple], list]:  # type: ignore[type-arg]
    """Every request's first and last token, tokens and cached prompt tokens."""
    heap: list[tuple[int, int, str, TwinRequest]] = []
    at = 0
    for number, (gap, prompt, output, family, shared, leaves) in enumerate(rows):
        at += gap * MILLISECOND
        in_place = prompt if caches and family == 3 and shared % 2 else 0  # some come with their KV
        names = hashes(number, prompt, family, shared) if caches else []
        request = TwinRequest(f"r{number}", prompt, output, names, in_place)
        heapq.heappush(heap, (at, 2 * number, "submit", request))
        if leaves is not None:
            heapq.heappush(heap, (at + leaves * MILLISECOND, 2 * number + 1, "leave", request))
    sent = {}
    while heap or engine.next_event() is not None:
        event = engine.next_event()
        if event is not None and (not heap or event <= heap[0][0]):
            engine.advance(event)
            continue
        now, _, what, request = heapq.heappop(heap)
        if what == "submit":
            sent[request.id] = engine.submit(now, request)
        elif isinstance(engine, SkippingEngine):
            engine.end(sent[request.id], now)
        else:
            engine.end(sent[request.id])
    seen = {
        name: (row.first_token_at, row.last_token_at if row.emitted == row.request.output_tokens else None)
        for name, row in sent.items()
    }
    counts = [(name, row.emitted, row.cached, row.preemptions) for name, row in sent.items()]
    return seen, counts


def limits(kv_blocks: int, max_num_seqs: int) -> Limits:
    return Limits(max_num_seqs, chunk_tokens=32, block_tokens=BLOCK, kv_blocks=kv_blocks)


def assert_alike(walked: tuple[dict[str, tuple], list], skipped: tuple[dict[str, tuple], list]) -> None:  # type: ignore[type-arg]
    """The same tokens, hits and preemptions, and the same instants to a thousandth."""
    assert skipped[1] == walked[1]
    for name, (first, last) in walked[0].items():
        for here, there in zip((first, last), skipped[0][name], strict=True):
            assert (here is None) == (there is None), name
            if here is not None and there is not None:
                assert abs(here - there) <= max(1000, here // 1000), (name, here, there)


@given(rows=calls, kv_blocks=st.integers(60, 400), max_num_seqs=st.integers(1, 12), pace=st.sampled_from([0.5, 1, 2.5]))
@settings(max_examples=300, deadline=None)
def test_skipping_changes_nothing(rows: list[tuple], kv_blocks: int, max_num_seqs: int, pace: float) -> None:  # type: ignore[type-arg]
    bounds = limits(kv_blocks, max_num_seqs)
    skipping = SkippingEngine(bounds, STEP, pace)
    assert_alike(story(Engine(bounds, STEP, pace), rows), story(skipping, rows))
    assert skipping.pool.used == 0
    assert not skipping.running


@given(rows=calls, kv_blocks=st.integers(60, 400), max_num_seqs=st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_nor_where_a_whole_prompt_needs_room(rows: list[tuple], kv_blocks: int, max_num_seqs: int) -> None:  # type: ignore[type-arg]
    bounds = dataclasses.replace(limits(kv_blocks, max_num_seqs), room_for_prompt=True)
    assert_alike(story(Engine(bounds, STEP), rows), story(SkippingEngine(bounds, STEP), rows))


@given(rows=calls, kv_blocks=st.integers(60, 400), max_num_seqs=st.integers(1, 12))
@settings(max_examples=300, deadline=None)
def test_nor_where_prompts_go_first_and_whole(rows: list[tuple], kv_blocks: int, max_num_seqs: int) -> None:  # type: ignore[type-arg]
    bounds = Limits(max_num_seqs, chunk_tokens=300, block_tokens=BLOCK, kv_blocks=kv_blocks, whole_prompts=True)
    walking = Engine(bounds, STEP)
    walking.scheduler = PromptsFirstScheduler(bounds)
    skipping = PromptsFirstEngine(bounds, STEP)
    assert_alike(story(walking, rows, caches=False), story(skipping, rows, caches=False))
    assert skipping.pool.used == 0
    assert not skipping.running


def test_padding_sets_who_goes_together() -> None:
    bounds = Limits(8, chunk_tokens=2048, block_tokens=BLOCK, kv_blocks=4000, whole_prompts=True)
    assert fit_together([100, 300, 340], bounds) == 2, (
        "the third one's 340 would pad the first by 240, the second by 40"
    )
    assert fit_together([1000, 1000, 10], bounds) == 2, "three of 1,000 are more than a step has room for"
    assert padded_work([100, 300]) == (600, 90_000)


@given(rows=calls)
@settings(max_examples=50, deadline=None)
def test_progress_is_told_often_enough(rows: list[tuple]) -> None:  # type: ignore[type-arg]
    engine = SkippingEngine(limits(400, 8), STEP, report_tokens=8, report_s=1e9)
    told: dict[str, list[int]] = {}
    at = 0
    for number, (gap, prompt, output, *_) in enumerate(rows):
        at += gap * MILLISECOND
        while (event := engine.next_event()) is not None and event <= at:
            _note(engine, event, told)
        engine.submit(at, TwinRequest(f"r{number}", prompt, output))
    while (event := engine.next_event()) is not None:
        _note(engine, event, told)
    for number, (_, _, output, *_) in enumerate(rows):
        counts = told[f"r{number}"]
        assert counts[0] == 1
        assert counts[-1] == output
        assert all(0 < later - before <= 8 for before, later in itertools.pairwise(counts))


def _note(engine: SkippingEngine, event: int, told: dict[str, list[int]]) -> None:
    leap = engine.advance(event)
    for row in leap.told if leap is not None else ():
        told.setdefault(row.request.id, []).append(row.emitted)
