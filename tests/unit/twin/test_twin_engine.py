"""The twin in virtual time: when steps end, that nothing is lost, that equal runs are equal."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.nouns.instant import MILLISECOND
from isochrone.twin.engine import Engine
from isochrone.twin.schedule import Limits
from isochrone.twin.sequence import Row, TwinRequest
from isochrone.twin.steptime import StepTime

STEP = StepTime(floor_s=0.010, base_s=0.002, token_s=0.0001, kv_token_s=0.00001, pair_s=0.000001, overhead_s=0.001)


def engine(kv_blocks: int = 1000, pace: float = 1.0, chunk_tokens: int = 64, max_num_seqs: int = 4) -> Engine:
    return Engine(Limits(max_num_seqs, chunk_tokens, block_tokens=4, kv_blocks=kv_blocks), STEP, pace)


def run_out(twin: Engine) -> list[int]:
    """Advance until idle; when each step ended."""
    ends = []
    while (at := twin.next_event()) is not None:
        if (step := twin.advance(at)) is not None:
            ends.append(step.ended)
    return ends


def test_step_time_has_a_floor_and_adds_attention_and_overhead() -> None:
    assert STEP.seconds(1, 0, 0) == 0.010 + 0.001
    assert abs(STEP.seconds(200, 300, 1000) - (0.002 + 0.020 + 0.003 + 0.001 + 0.001)) < 1e-12


def test_steps_follow_each_other_without_a_gap() -> None:
    twin = engine()
    row = twin.submit(5 * MILLISECOND, TwinRequest("a", prompt_tokens=10, output_tokens=3))
    assert twin.next_event() == 5 * MILLISECOND
    ends = run_out(twin)
    first = 5 * MILLISECOND + 11 * MILLISECOND + 50_000  # 50 pairs
    second = first + 11 * MILLISECOND + 110_000  # reads 11 tokens
    assert ends == [first, second, second + 11 * MILLISECOND + 120_000]
    assert (row.scheduled_at, row.first_token_at, row.last_token_at) == (5 * MILLISECOND, first, ends[-1])
    assert twin.next_event() is None


def test_a_slow_engine_takes_that_much_longer() -> None:
    ends = {}
    for pace in (1.0, 2.5):
        twin = engine(pace=pace)
        twin.submit(0, TwinRequest("a", 10, 3))
        ends[pace] = run_out(twin)[-1]
    assert abs(ends[2.5] - 2.5 * ends[1.0]) <= 5


def test_one_that_arrives_in_mid_step_joins_the_next_step() -> None:
    twin = engine()
    twin.submit(0, TwinRequest("a", 10, 3))
    twin.advance(0)
    late = twin.submit(1 * MILLISECOND, TwinRequest("b", 10, 3))
    end = twin.next_event()
    assert end is not None
    step = twin.advance(end)
    assert step is not None
    assert [row.request.id for row in step.emitted] == ["a"]
    twin.advance(end)
    assert late.scheduled_at == end


def test_ending_the_only_row_in_mid_step_leaves_an_idle_engine() -> None:
    twin = engine()
    row = twin.submit(0, TwinRequest("a", 10, 3))
    twin.advance(0)
    twin.end(row)
    assert len(run_out(twin)) == 1
    assert twin.scheduler.pool.used == 0


def test_skipping_time_moves_only_a_step_that_has_not_begun() -> None:
    twin = engine()
    twin.submit(0, TwinRequest("a", 10, 3))
    twin.skip_to(7)
    assert twin.next_event() == 7
    twin.advance(7)
    end = twin.next_event()
    twin.skip_to(10**12)
    assert twin.next_event() == end


@dataclass(frozen=True)
class Arrival:
    gap_ms: int
    prompt: int
    output: int
    prefix: int
    leaves_after: int | None
    """Tokens after which the client is gone."""


arrivals = st.lists(
    st.builds(
        Arrival,
        gap_ms=st.integers(0, 40),
        prompt=st.integers(1, 40),
        output=st.integers(1, 12),
        prefix=st.integers(0, 3),
        leaves_after=st.none() | st.integers(1, 4),
    ),
    max_size=14,
)


def play(plan: list[Arrival], kv_blocks: int, chunk_tokens: int) -> tuple[list[tuple[int, str]], Engine]:
    """Run a workload, checking after every step that blocks are conserved; who got a token when."""
    twin = engine(kv_blocks=kv_blocks, chunk_tokens=chunk_tokens)
    told: list[tuple[int, str]] = []
    pending = []
    now = 0
    for nth, arrival in enumerate(plan):
        now += arrival.gap_ms * MILLISECOND
        hashes = [hash_of(arrival.prefix, block) for block in range(arrival.prompt // 4)]
        pending.append((now, arrival, TwinRequest(str(nth), arrival.prompt, arrival.output, hashes)))
    leaves: dict[Row, int | None] = {}
    while pending or twin.next_event() is not None:
        at = twin.next_event()
        if pending and (at is None or pending[0][0] <= at):
            arrives, arrival, request = pending.pop(0)
            leaves[twin.submit(arrives, request)] = arrival.leaves_after
            continue
        assert at is not None
        step = twin.advance(at)
        assert_conserved(twin)
        for row in step.emitted if step else ():
            told.append((at, row.request.id))
            if row.emitted == leaves[row]:
                twin.end(row)
    return told, twin


def hash_of(prefix: int, block: int) -> int:
    return prefix * 1000 + block


def assert_conserved(twin: Engine) -> None:
    scheduler = twin.scheduler
    held = {block for row in scheduler.running for block in row.blocks}
    assert scheduler.pool.used == len(held)
    assert scheduler.pool.used + scheduler.pool.free == scheduler.pool.total
    assert len(scheduler.running) <= scheduler.limits.max_num_seqs
    assert all(row.computed <= len(row.blocks) * scheduler.limits.block_tokens for row in scheduler.running)


@settings(max_examples=60)
@given(plan=arrivals, kv_blocks=st.integers(13, 40), chunk_tokens=st.integers(1, 50))
def test_every_request_gets_all_its_tokens_and_every_block_comes_back(
    plan: list[Arrival], kv_blocks: int, chunk_tokens: int
) -> None:
    told, twin = play(plan, kv_blocks, chunk_tokens)
    for nth, arrival in enumerate(plan):
        wanted = min(arrival.output, arrival.leaves_after or arrival.output)
        assert sum(1 for _, id in told if id == str(nth)) == wanted
    assert twin.scheduler.pool.used == 0
    assert twin.scheduler.pool.free == kv_blocks
    assert [at for at, _ in told] == sorted(at for at, _ in told)
    assert play(plan, kv_blocks, chunk_tokens)[0] == told
