"""The schedule of vLLM before it could cut prompts into chunks (0.2, 2023).

A step either takes in prompts or decodes. Whoever waits goes first: as many whole prompts as fit the step's tokens, the
slots and the memory make a step of their own, for which all decoding stands still. Only where nobody can be let in do
the rows that run get a token each. Prompts of one step are padded to the longest of them, and the padding is computed
too; where it would come to more than 256 tokens, a prompt waits for the next step.
"""

from collections.abc import Sequence as Items

from isochrone.nouns.instant import Instant
from isochrone.twin.leaps import NEVER, Plan, Sequence
from isochrone.twin.schedule import Limits, Scheduler
from isochrone.twin.schedule import Plan as StepPlan
from isochrone.twin.sequence import TwinRequest
from isochrone.twin.skipping import NOWHERE, SkippingEngine

PADDING_TOKENS_MAX = 256
"""Of one step: vLLM's `max_paddings`, from 0.2.2 to 0.2.7."""


def fit_together(lengths: Items[int], limits: Limits) -> int:
    """How many of the prompts, in this order, one step can take for their lengths. The first always can."""
    longest = total = 0
    for count, length in enumerate(lengths):
        longest, total = max(longest, length), total + length
        padded = (count + 1) * longest
        if padded > limits.chunk_tokens or padded - total > PADDING_TOKENS_MAX:
            return count
    return len(lengths)


def padded_work(lengths: Items[int]) -> tuple[int, float]:
    """Tokens and attention pairs of a step of these prompts."""
    longest = max(lengths)
    return len(lengths) * longest, len(lengths) * longest * longest / 2


class PromptsFirstScheduler(Scheduler):
    """Step by step: what the engine below is held against."""

    def plan(self, now: Instant) -> StepPlan:
        plan = StepPlan()
        together = fit_together([row.known for row in self.waiting], self.limits)
        behind = [self.waiting.pop() for _ in range(len(self.waiting) - together)]
        self._plan_waiting(plan, self.limits.chunk_tokens, now)
        self.waiting.extend(reversed(behind))
        if plan.rows:
            plan.decode_rows = plan.kv_read = 0
            plan.prefill_tokens, plan.pairs = padded_work([row.known for row in plan.rows])
        else:
            self._plan_running(plan)
        return plan


class PromptsFirstEngine(SkippingEngine):
    """Its limits have `whole_prompts`, and room in a step for the longest sequence. Nothing is cached for others."""

    _paused = False
    """The step in flight takes in prompts; decoding stands still."""

    def submit(self, now: Instant, request: TwinRequest) -> Sequence:
        assert self.limits.whole_prompts
        assert not request.hashes
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
            self._let_in(plan)
        if not plan.first_tokens:
            stuck = bool(self.waiting)
            self._blocked_at = 0  # the step decodes, and those that wait, do so until another row ends or gives way
            super()._begin()
            if not stuck:
                self._blocked_at = NOWHERE
            return
        self._paused = True
        plan.kv_read = 0
        tokens, pairs = padded_work([row.known for row in plan.first_tokens])
        plan.matrix_s = self.step_time.seconds(tokens, 0, pairs)
        self._plan = plan
        self._at = plan.began + self._span(plan, 1)

    def _let_in(self, plan: Plan) -> None:
        """The prompts of this step."""
        budget = self.limits.chunk_tokens
        for _ in range(fit_together([row.known for row in self.waiting], self.limits)):
            admitted = self._admit(budget)
            if admitted is None:
                return
            row, tokens = admitted
            self._computes(plan, row, tokens)
            budget -= tokens

    def _settle(self, plan: Plan, steps: int) -> None:
        if self._paused:
            self._paused = False
            return
        super()._settle(plan, steps)
