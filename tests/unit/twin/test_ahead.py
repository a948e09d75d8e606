"""Who comes in a step is part of the one after next."""

from isochrone.nouns.instant import MILLISECOND
from isochrone.twin.ahead import AheadEngine
from isochrone.twin.schedule import Limits
from isochrone.twin.sequence import TwinRequest
from isochrone.twin.steptime import StepTime

STEP = StepTime(floor_s=0.01, base_s=0.0, token_s=0.0, kv_token_s=0.0, pair_s=0.0, overhead_s=0.0)
LIMITS = Limits(4, 1000, 10, 1000)


def run(engine: AheadEngine, until_ms: float = 1e6) -> None:
    while (due := engine.next_event()) is not None and due <= until_ms * MILLISECOND:
        engine.advance(due)


def test_an_idle_engine_begins_at_once() -> None:
    engine = AheadEngine(LIMITS, STEP)
    row = engine.submit(0, TwinRequest("a", 100, 2))
    run(engine)
    assert (row.first_token_at, row.last_token_at) == (10 * MILLISECOND, 20 * MILLISECOND)


def test_a_busy_one_has_planned_a_step_already() -> None:
    engine = AheadEngine(LIMITS, STEP)
    first = engine.submit(0, TwinRequest("a", 100, 50))
    run(engine, until_ms=24)
    late = engine.submit(24 * MILLISECOND, TwinRequest("b", 100, 3))
    run(engine)
    assert late.first_token_at == 50 * MILLISECOND, "taken in at 30, the step to 40 was planned"
    assert late.last_token_at == 70 * MILLISECOND
    assert first.last_token_at == 500 * MILLISECOND
    assert engine.pool.used == 0


def test_nothing_else_to_do_means_no_wait() -> None:
    engine = AheadEngine(LIMITS, STEP)
    engine.submit(0, TwinRequest("a", 100, 1))
    run(engine, until_ms=4)
    late = engine.submit(4 * MILLISECOND, TwinRequest("b", 100, 1))
    run(engine)
    assert late.first_token_at == 20 * MILLISECOND


def test_one_that_leaves_before_it_joins_is_gone() -> None:
    engine = AheadEngine(LIMITS, STEP)
    engine.submit(0, TwinRequest("a", 100, 10))
    run(engine, until_ms=14)
    for leaves_ms in (15, 25):
        late = engine.submit(14 * MILLISECOND, TwinRequest(f"b{leaves_ms}", 100, 3))
        run(engine, until_ms=leaves_ms)
        engine.end(late, leaves_ms * MILLISECOND)
        assert late.ended
        assert late.first_token_at is None
    run(engine)
    assert engine.pool.used == 0
    assert engine.next_event() is None
