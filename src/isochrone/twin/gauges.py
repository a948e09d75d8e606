"""What an engine's gauges say, and when.

vLLM sets its gauges (running, waiting, KV usage) once a step, when the step is over: what the next step has taken in,
and who has come while it runs, is not seen before that one has ended. A prompt of many thousand tokens makes a step of
half a second or more, for which its engine looks as idle as it was before.
"""

from dataclasses import dataclass

from isochrone.nouns.instant import Instant
from isochrone.twin.leaps import Leap, Plan
from isochrone.twin.sequence import TwinRequest
from isochrone.twin.skipping import Sequence, SkippingEngine


@dataclass(frozen=True, slots=True)
class Gauges:
    """As of the end of a step."""

    running: int
    waiting: int
    """Those that the step found no room for."""
    kv_usage_ratio: float


class GaugedEngine(SkippingEngine):
    """Knows what its gauges say. A leap of many equal steps is one step here: it changes nothing but the KV usage, by a
    token a row and step."""

    gauges = Gauges(0, 0, 0.0)
    _came_since = 0
    """Rows that have come since it began."""

    def submit(self, now: Instant, request: TwinRequest) -> Sequence:
        self._came_since += 1
        return super().submit(now, request)

    def _begin(self) -> None:
        super()._begin()
        self._came_since = 0

    def _finish(self, plan: Plan) -> Leap:
        leap = super()._finish(plan)
        waiting = max(0, len(self.waiting) - self._came_since)
        self.gauges = Gauges(len(self.running), waiting, self.kv_usage_ratio)
        return leap
