"""What goes into a step: budget, order, prefix hits, preemption."""

from isochrone.twin.schedule import Limits, Plan, Scheduler
from isochrone.twin.sequence import Row, TwinRequest


def scheduler(max_num_seqs: int = 8, chunk_tokens: int = 64, kv_blocks: int = 100) -> Scheduler:
    return Scheduler(Limits(max_num_seqs, chunk_tokens, block_tokens=4, kv_blocks=kv_blocks))


def put(engine: Scheduler, id: str, prompt: int, output: int = 5, hashes: list[int] | None = None) -> Row:
    row = Row(TwinRequest(id, prompt, output, hashes or []), submitted_at=0, known=prompt)
    engine.waiting.append(row)
    return row


def shape(plan: Plan) -> list[tuple[str, int]]:
    return [(row.request.id, tokens) for row, tokens in zip(plan.rows, plan.tokens, strict=True)]


def step(engine: Scheduler) -> Plan:
    plan = engine.plan(0)
    engine.apply(plan, 0)
    return plan


def test_a_long_prompt_is_prefilled_in_chunks_and_gives_a_token_only_at_its_end() -> None:
    engine = scheduler(chunk_tokens=10)
    put(engine, "a", 25)
    plans = [engine.plan(0)]
    emitted = [len(engine.apply(plans[0], 0))]
    for _ in range(3):
        plans.append(engine.plan(0))
        emitted.append(len(engine.apply(plans[-1], 0)))
    assert [shape(plan) for plan in plans] == [[("a", 10)], [("a", 10)], [("a", 5)], [("a", 1)]]
    assert emitted == [0, 0, 1, 1]
    assert [plan.decode_rows for plan in plans] == [0, 0, 0, 1]
    assert [plan.pairs for plan in plans] == [10 * 5, 10 * 15, 5 * 22.5, 0]
    assert plans[3].kv_read == 26


def test_running_rows_come_first_and_the_budget_is_kept() -> None:
    engine = scheduler(chunk_tokens=10)
    put(engine, "a", 3)
    put(engine, "b", 3)
    step(engine)
    put(engine, "c", 20)
    put(engine, "d", 4)
    assert shape(step(engine)) == [("a", 1), ("b", 1), ("c", 8)]
    assert shape(step(engine)) == [("a", 1), ("b", 1), ("c", 8)]
    assert shape(step(engine)) == [("a", 1), ("b", 1), ("c", 4), ("d", 4)]


def test_no_more_sequences_than_allowed() -> None:
    engine = scheduler(max_num_seqs=2)
    rows = [put(engine, str(nth), 4, output=2) for nth in range(3)]
    assert shape(step(engine)) == [("0", 4), ("1", 4)]
    step(engine)
    assert [row.ended for row in rows] == [True, True, False]
    assert shape(step(engine)) == [("2", 4)]


def test_one_that_does_not_fit_keeps_those_behind_it_waiting() -> None:
    engine = scheduler(kv_blocks=5)
    put(engine, "a", 10)  # 3 blocks
    put(engine, "b", 12)  # 3 blocks
    put(engine, "c", 4)
    assert shape(step(engine)) == [("a", 10)]


def test_a_prompt_seen_before_is_found_and_its_last_token_is_computed_again() -> None:
    engine = scheduler()
    put(engine, "a", 8, output=1, hashes=[1, 2])
    step(engine)
    row = put(engine, "b", 8, output=1, hashes=[1, 2])
    assert shape(step(engine)) == [("b", 4)]  # 7 tokens may be found, in whole blocks: 4
    assert row.cached == 4
    assert (engine.prefix_query_tokens, engine.prefix_hit_tokens) == (16, 4)


def test_two_equal_prompts_in_one_step_share_their_blocks() -> None:
    engine = scheduler()
    put(engine, "a", 9, hashes=[1, 2])
    put(engine, "b", 9, hashes=[1, 2])
    assert shape(step(engine)) == [("a", 9), ("b", 1)]
    assert engine.pool.used == 4  # two shared, one more each


def test_blocks_filled_by_output_are_found_by_the_next_turn() -> None:
    engine = scheduler()
    first = put(engine, "a", 6, output=4, hashes=[1])
    step(engine)
    first.request.hashes.append(2)  # tokens 5 to 8: two of the prompt, two of the output
    while engine.running:
        step(engine)
    row = put(engine, "b", 12, hashes=[1, 2, 3])
    step(engine)
    assert row.cached == 8


def test_when_blocks_run_out_the_last_one_let_in_is_computed_again() -> None:
    engine = scheduler(kv_blocks=4)
    first = put(engine, "a", 7, output=6)
    second = put(engine, "b", 7, output=6)
    step(engine)
    step(engine)
    assert shape(step(engine)) == [("a", 1)]  # 9 tokens: a third block
    assert (second.preemptions, engine.preemptions) == (1, 1)
    assert list(engine.waiting) == [second]
    assert second.blocks == []
    while not first.ended:
        step(engine)
    assert shape(step(engine)) == [("b", 9)]  # prompt and both tokens
    while engine.running:
        step(engine)
    assert second.emitted == 6
    assert engine.pool.free == 4


def test_a_row_that_cannot_grow_gives_way_itself_when_it_was_let_in_last() -> None:
    engine = scheduler(kv_blocks=4)
    put(engine, "a", 8, output=2)
    second = put(engine, "b", 7, output=9)
    step(engine)
    step(engine)  # a has 9 tokens: b is preempted at once, a ends
    assert second.preemptions == 1
    assert engine.running == []
    assert shape(step(engine)) == [("b", 8)]


def test_one_that_leaves_gives_its_blocks_back_wherever_it_is() -> None:
    engine = scheduler(max_num_seqs=1)
    running = put(engine, "a", 8)
    waiting = put(engine, "b", 8)
    plan = engine.plan(0)
    engine.remove(running)
    engine.remove(waiting)
    engine.remove(waiting)
    assert engine.apply(plan, 0) == []
    assert (engine.pool.used, engine.running, list(engine.waiting)) == (0, [], [])
