"""The schedule of vLLM before it could cut prompts into chunks (0.2, 2023).

A step either takes in prompts or decodes. Whoever waits goes first: as many whole prompts as fit the step's tokens, the
slots and the memory make a step of their own, for which all decoding stands still. Only where nobody can be let in do
the rows that run get a token each.
"""

from isochrone.nouns.instant import Instant
from isochrone.twin.leaps import NEVER, Plan, Sequence
from isochrone.twin.schedule import Plan as StepPlan
from isochrone.twin.schedule import Scheduler
from isochrone.twin.sequence import TwinRequest
from isochrone.twin.skipping import NOWHERE, SkippingEngine


class PromptsFirstScheduler(Scheduler):
    """Step by step: what the engine below is held against."""

    def plan(self, now: Instant) -> StepPlan:
        plan = StepPlan()
        self._plan_waiting(plan, self.limits.chunk_tokens, now)
        if not plan.rows:
            self._plan_running(plan)
        return plan


class PromptsFirstEngine(SkippingEngine):
    """Its limits have `whole_prompts`, and room in a step for the longest sequence: nothing may be cut."""

    _paused = False
    """The step in flight takes in prompts; decoding stands still."""

    def submit(self, now: Instant, request: TwinRequest) -> Sequence:
        assert self.limits.whole_prompts
        assert request.prompt_tokens + request.output_tokens <= self.limits.chunk_tokens
        return super().submit(now, request)

    def end(self, row: Sequence, now: Instant) -> None:
        if self._paused and not row.ended and row.decodes_since != NEVER:
            self._bring_up_to_date(row)
            self._remove(row, row.known - 1)  # it has no token in this step, and no block for one
            return
        super().end(row, now)

    def _begin(self) -> None:
        plan = Plan(self._at, 1, 0, 0)
        if self.waiting and self._blocked_at == NOWHERE:
            self._plan_prefill(plan, preempted=False)
        if not plan.first_tokens:
            stuck = bool(self.waiting)
            self._blocked_at = 0  # the step decodes, and those that wait, do so until another row ends or gives way
            super()._begin()
            if not stuck:
                self._blocked_at = NOWHERE
            return
        self._blocked_at = NOWHERE
        self._paused = True
        plan.matrix_s = self.step_time.seconds(plan.prefill_tokens + plan.lone, 0, plan.pairs)
        self._plan = plan
        self._at = plan.began + self._span(plan, 1)

    def _settle(self, plan: Plan, steps: int) -> None:
        if self._paused:
            self._paused = False
            return
        super()._settle(plan, steps)
