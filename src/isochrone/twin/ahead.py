"""Steps that are planned ahead: vLLM's async scheduling, its default by 2026.

While a step runs on the card, the host plans the next one. Who comes while step N runs is taken in when N ends; N + 1
has been planned by then, so that the request is part of N + 2: its first token comes two whole steps after it was taken
in, where without planning ahead it comes one after. An engine that has nothing else to do begins at once. (What a row
that ends gives back is used a step earlier here than there.)
"""

from isochrone.nouns.instant import Instant
from isochrone.twin.leaps import Sequence
from isochrone.twin.schedule import Limits
from isochrone.twin.sequence import TwinRequest
from isochrone.twin.skipping import SkippingEngine
from isochrone.twin.steptime import StepTime


class AheadEngine(SkippingEngine):
    """Rows join a step later."""

    def __init__(
        self,
        limits: Limits,
        step_time: StepTime,
        pace: float = 1.0,
        report_tokens: int = 32,
        report_s: float = 0.5,
    ) -> None:
        super().__init__(limits, step_time, pace, report_tokens, report_s)
        self._came: list[Sequence] = []
        """While the step in flight runs."""
        self._taken: list[Sequence] = []
        """When it began: the step in flight was planned by then."""

    def submit(self, now: Instant, request: TwinRequest) -> Sequence:
        row = super().submit(now, request)
        if self._plan is not None:
            self._cut(now)
            self._came.append(self.waiting.pop())
        return row

    def _idle(self) -> bool:
        return super()._idle() and not self._came and not self._taken

    def _begin(self) -> None:
        self.waiting.extend(self._taken)
        self._taken, self._came = self._came, []
        if not self.waiting and not self.running:
            self.waiting.extend(self._taken)
            self._taken = []
        super()._begin()

    def _steps_alike(self) -> int:
        return 1 if self._taken else super()._steps_alike()

    def _remove(self, row: Sequence, length: int) -> None:
        for held in (self._came, self._taken):
            if row in held:
                held.remove(row)
                row.ended = True
                return
        super()._remove(row, length)
