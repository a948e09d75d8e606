"""Gauges say what was so at the end of a step."""

from isochrone.nouns.instant import MILLISECOND
from isochrone.twin.gauges import GaugedEngine, Gauges
from isochrone.twin.schedule import Limits
from isochrone.twin.sequence import TwinRequest
from isochrone.twin.steptime import StepTime

STEP = StepTime(floor_s=0.01, base_s=0.0, token_s=0.0, kv_token_s=0.0, pair_s=0.0, overhead_s=0.0)


def test_a_step_in_flight_is_not_seen() -> None:
    engine = GaugedEngine(Limits(2, 100, 10, 100), STEP)
    for name in "abc":
        engine.submit(0, TwinRequest(name, 100, 5))
    engine.advance(0)
    assert engine.running
    assert engine.gauges == Gauges(0, 0, 0.0), "the first prompt is computed, and nobody sees it"
    engine.submit(5 * MILLISECOND, TwinRequest("late", 100, 5))
    engine.advance(10 * MILLISECOND)
    assert engine.gauges == Gauges(1, 2, 0.1), "who came in mid-step is not known yet"
    engine.advance(10 * MILLISECOND)
    assert len(engine.running) == 2
    assert engine.gauges.running == 1
    engine.advance(20 * MILLISECOND)
    assert (engine.gauges.running, engine.gauges.waiting) == (2, 2)
