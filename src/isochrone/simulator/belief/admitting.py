"""A twin that also spends time on each request, not only on steps.

What an engine's host does for a new request (its sampling state, the hashes of its blocks, its row in the batch) is
hidden behind the step that runs on a card meanwhile. Where host and card are the same cores, as in vLLM for CPUs,
nothing hides it: everybody in the batch waits for it. The step in which the request's prompt ends is so much longer
here.
"""

from isochrone.twin.schedule import Limits
from isochrone.twin.skipping import SkippingEngine
from isochrone.twin.steptime import StepTime


class AdmittingEngine(SkippingEngine):
    """`request_s`: what the host does for each request, in seconds."""

    def __init__(
        self,
        limits: Limits,
        step_time: StepTime,
        pace: float = 1.0,
        report_tokens: int = 32,
        report_s: float = 0.5,
        request_s: float = 0.0,
    ) -> None:
        super().__init__(limits, step_time, pace, report_tokens, report_s)
        self.request_s = request_s

    def _begin(self) -> None:
        super()._begin()
        plan = self._plan
        assert plan is not None
        if plan.first_tokens:
            plan.matrix_s += self.request_s * len(plan.first_tokens)
            self._at = plan.began + self._span(plan, plan.steps)
