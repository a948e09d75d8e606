"""A request whose prompt's KV has come from another engine: it takes memory at once, and no time."""

import pytest

from isochrone.nouns.instant import MILLISECOND
from isochrone.twin.engine import Engine
from isochrone.twin.schedule import Limits
from isochrone.twin.sequence import TwinRequest
from isochrone.twin.skipping import SkippingEngine
from isochrone.twin.steptime import StepTime

STEP = StepTime(floor_s=0.0, base_s=0.010, token_s=0.001, kv_token_s=0.0, pair_s=0.0, overhead_s=0.0)
"""10 ms and one for each token."""
LIMITS = Limits(max_num_seqs=8, chunk_tokens=32, block_tokens=4, kv_blocks=40)


@pytest.mark.parametrize("in_place", [0, 100])
def test_its_first_token_comes_after_one_step(in_place: int) -> None:
    """100 tokens in chunks of 32, 32, 32 and 4 take 140 ms; in place, the last one alone takes 11. Then 11 a token."""
    engine = SkippingEngine(LIMITS, STEP, report_tokens=1)
    row = engine.submit(0, TwinRequest("a", 100, 3, [], in_place))
    while (at := engine.next_event()) is not None:
        engine.advance(at)
        assert engine.pool.used in ((0, 8, 16, 24, 25, 26) if not in_place else (0, 25, 26))
    first = 11 if in_place else 140
    assert row.first_token_at == first * MILLISECOND
    assert row.last_token_at == (first + 22) * MILLISECOND
    assert row.cached == 0, "what came from elsewhere is no hit"


def test_both_engines_agree_and_what_is_thrown_out_is_computed_anew() -> None:
    """Two of 64 tokens fill 32 of 40 blocks; each grows by 24, so one has to give way, and comes back by computing."""
    walking, skipping = Engine(LIMITS, STEP), SkippingEngine(LIMITS, STEP)
    requests = [TwinRequest(name, 64, 24, [], 64) for name in "ab"]
    walked = [walking.submit(0, request) for request in requests]
    skipped = [skipping.submit(0, request) for request in requests]
    for engine in (walking, skipping):
        while (at := engine.next_event()) is not None:
            engine.advance(at)
    preemptions = [row.preemptions for row in walked]
    assert preemptions == [row.preemptions for row in skipped]
    assert preemptions[0] == 0
    assert preemptions[1] >= 1
    assert [row.last_token_at for row in walked] == [row.last_token_at for row in skipped]
    first, second = (row.last_token_at for row in walked)
    assert first is not None
    assert second is not None
    assert second > first + 3 * 10 * MILLISECOND
