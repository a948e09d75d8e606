"""`Engine` for virtual time: the same schedule, without walking through steps in which nothing happens.

While nobody prefills, a step differs from the one before it only in that each decoding row has one more token of
context (`leaps.py` has the formula). A *leap* goes to the next step at whose end something is to be told: a row ends,
reports progress, or KV memory runs out. A request that arrives in mid-leap cuts it at the end of the step in flight.
Steps with prefill are taken one by one, but cost the same whatever the batch: decoding rows are a count, a sum of
contexts, and a count of rows by the step at which each needs its next block.

Rows that decode are brought up to date only where they are told of: `Sequence.emitted` is what the row had then.
Everything else is `schedule.py`, in the same order; a property test holds the two against each other.
"""

import heapq
import math
from collections import deque

from isochrone.nouns.instant import Instant
from isochrone.twin.counted import NAMELESS, CountedPool
from isochrone.twin.leaps import NEVER, Leap, Plan, Sequence
from isochrone.twin.schedule import Limits
from isochrone.twin.sequence import TwinRequest
from isochrone.twin.steptime import StepTime

NOWHERE = 1 << 60


class SkippingEngine:
    """One engine. `pace` multiplies every step's duration; `report_tokens`, `report_s`: progress of a row is told after
    so many tokens or (about) so long, whichever comes first."""

    def __init__(
        self,
        limits: Limits,
        step_time: StepTime,
        pace: float = 1.0,
        report_tokens: int = 32,
        report_s: float = 0.5,
    ) -> None:
        assert pace > 0
        assert limits.max_num_seqs < limits.chunk_tokens, "a step must have room for more than one token a row"
        self.limits = limits
        self.step_time = step_time
        self.pace = pace
        self.pool = CountedPool(limits.kv_blocks)
        self.waiting: deque[Sequence] = deque()
        self.running: dict[Sequence, None] = {}
        """In the order in which they were let in."""
        self.preemptions = 0
        self.prefix_query_tokens = 0
        self.prefix_hit_tokens = 0
        self.prompt_tokens = 0
        """Counter: tokens of prompts whose prefill has ended."""
        self.generated_tokens = 0
        self.steps = 0
        """Counter: steps done."""
        self._report_tokens, self._report_s = report_tokens, report_s
        self._batch = 0
        """Decoding rows, the context that they read in the next step, and how many of them (by step count modulo the
        size of a block) need a new block then."""
        self._context = 0
        self._growth = [0] * limits.block_tokens
        self._prefilling: Sequence | None = None
        """The row whose prompt did not fit the last step; always the last one let in."""
        self._blocked_at = NOWHERE
        """Tokens of a step's budget with which the first waiting row did not fit. With as many or more it will not
        before another row ends."""
        self._marks: list[tuple[int, int, int, Sequence]] = []
        """(step count, place, spell, row): when to tell of a row."""
        self._admitted = 0
        self._plan: Plan | None = None
        self._at: Instant = 0

    # -- what a driver calls ------------------------------------------------------------------------------------------

    def submit(self, now: Instant, request: TwinRequest) -> Sequence:
        """Queue a request. It must fit the KV cache even at its full length, or it could never finish."""
        limits = self.limits
        assert request.prompt_tokens > 0
        assert request.output_tokens > 0
        assert request.prompt_tokens + request.output_tokens <= limits.kv_blocks * limits.block_tokens
        assert len(request.hashes) <= request.prompt_tokens // limits.block_tokens
        if self._idle():
            self._at = max(self._at, now)
        row = Sequence(request, now, known=request.prompt_tokens)
        self.waiting.append(row)
        if self._blocked_at == NOWHERE:
            self._cut(now)
        return row

    def end(self, row: Sequence, now: Instant) -> None:
        """The row is over before its `output_tokens`: its client has left."""
        if row.ended:
            return
        self._cut(now)
        self._bring_up_to_date(row)
        in_flight = row.decodes_since != NEVER and self._plan is not None
        self._remove(row, row.known if in_flight else row.known - 1)

    def next_event(self) -> Instant | None:
        """When `advance` has something to do; None while the engine is idle."""
        return None if self._idle() else self._at

    def advance(self, now: Instant) -> Leap | None:
        """Finish the steps in flight (returned), or begin the next ones (None)."""
        assert now >= self._at
        if self._plan is not None:
            return self._finish(self._plan)
        self._begin()
        return None

    def change_pace(self, now: Instant, pace: float) -> None:
        """From the next step on."""
        assert pace > 0
        self._cut(now)
        self.pace = pace

    @property
    def kv_usage_ratio(self) -> float:
        return self.pool.used / self.pool.total

    def _idle(self) -> bool:
        return self._plan is None and not self.running and not self.waiting

    # -- time ---------------------------------------------------------------------------------------------------------

    def _span(self, plan: Plan, steps: int) -> int:
        return plan.span(steps, self.step_time, self.pace)

    def _cut(self, now: Instant) -> None:
        """Let the leap under way end with the step in flight at `now`."""
        plan = self._plan
        if plan is None or plan.steps == 1:
            return
        done = plan.steps_by(now, self.step_time, self.pace)
        if done:
            began = plan.began + self._span(plan, done)
            self._settle(plan, done)
            plan.began, plan.kv_read = began, plan.kv_read + plan.batch * done
            self.pool.take(self._growth[self.steps % self.limits.block_tokens])
        plan.steps = 1
        self._at = plan.began + self._span(plan, 1)

    # -- planning -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        grown = self._growth[self.steps % self.limits.block_tokens]
        preempted = False
        if grown <= self.pool.free and not self._prefilling_outgrows(grown):
            self.pool.take(grown)
        else:
            self._grow_or_preempt()
            preempted = True
        plan = Plan(self._at, 1, self._batch, self._context)
        self._plan_prefill(plan, preempted)
        plan.matrix_s = self.step_time.seconds(plan.batch + plan.prefill_tokens + plan.lone, 0, plan.pairs)
        if plan.batch and not (plan.prefill_tokens or plan.lone or preempted):
            plan.steps = self._steps_alike()
        self._plan = plan
        self._at = plan.began + self._span(plan, plan.steps)

    def _prefilling_outgrows(self, grown: int) -> bool:
        """Whether the row that prefills finds no room for its next chunk."""
        row = self._prefilling
        if row is None:
            return False
        return grown + self._missing(row, self._chunk_of(row)) > self.pool.free

    def _chunk_of(self, row: Sequence) -> int:
        return min(row.known - row.computed, self.limits.chunk_tokens - self._batch)

    def _missing(self, row: Sequence, tokens: int) -> int:
        """Blocks that a prefilling row needs for its next tokens, beyond those that it has."""
        size = self.limits.block_tokens
        return -(-(row.computed + tokens) // size) + -row.computed // size

    def _plan_prefill(self, plan: Plan, preempted: bool) -> None:
        """The prompts in this step."""
        budget = self.limits.chunk_tokens - self._batch
        row = self._prefilling
        if row is not None:
            tokens = self._chunk_of(row)
            if not preempted:
                self.pool.take(self._missing(row, tokens))
            self._name_full_blocks(row, row.computed + tokens)
            self._computes(plan, row, tokens)
            budget -= tokens
        while self.waiting and 0 < budget < self._blocked_at and not preempted:
            admitted = self._admit(budget)
            if admitted is None:
                self._blocked_at = budget
                break
            row, tokens = admitted
            self._computes(plan, row, tokens)
            budget -= tokens

    def _computes(self, plan: Plan, row: Sequence, tokens: int) -> None:
        """The row's next tokens are part of the step."""
        if row.known - row.computed == 1:
            plan.lone += 1
            plan.kv_read += row.known
        else:
            plan.prefill_tokens += tokens
            plan.pairs += tokens * (row.computed + tokens / 2)
        row.computed += tokens
        done = row.computed == row.known
        self._prefilling = None if done else row
        if done:
            plan.first_tokens.append(row)

    def _admit(self, budget: int) -> tuple[Sequence, int] | None:
        """Let the first waiting row in: it and its tokens in this step, or None where it does not fit."""
        if len(self.running) >= self.limits.max_num_seqs:
            return None
        row = self.waiting[0]
        size = self.limits.block_tokens
        hashes = row.request.hashes
        found = self.pool.find(hashes, (row.known - 1) // size)
        hit = found * size
        there = hit if row.scheduled_at is not None else max(hit, min(row.request.in_place, row.known - 1))
        tokens = min(row.known - there, budget)
        fresh = -(-(there + tokens) // size) - found
        shared = hashes[:found]
        whole = -(-row.known // size) - found if self.limits.room_for_prompt else fresh
        if not self.pool.fits(shared, whole) or (self.limits.whole_prompts and there + tokens < row.known):
            return None
        self.waiting.popleft()
        self.running[row] = None
        self._admitted += 1
        row.place = self._admitted
        self.pool.share(shared)
        self.pool.take(fresh)
        row.named = list(shared)
        row.computed = there
        if row.scheduled_at is None:
            row.scheduled_at = self._at
            row.cached = hit
            self.prefix_query_tokens += row.known
            self.prefix_hit_tokens += hit
        self._name_full_blocks(row, there + tokens)
        return row, tokens

    def _name_full_blocks(self, row: Sequence, length: int) -> None:
        hashes, named = row.request.hashes, row.named
        for value in hashes[len(named) : length // self.limits.block_tokens]:
            named.append(self.pool.name(value))

    def _grow_or_preempt(self) -> None:
        """Blocks for this step row by row; the rows let in last give way. Whoever is left is served."""
        size = self.limits.block_tokens
        for row in list(self.running):
            if row not in self.running:
                return
            if row.decodes_since != NEVER:
                self._bring_up_to_date(row)
                missing = 1 if (row.known - 1) % size == 0 else 0
            else:
                missing = self._missing(row, self._chunk_of(row))
            while self.pool.free < missing:
                victim = next(reversed(self.running))
                self._preempt(victim)
                if victim is row:
                    return
            self.pool.take(missing)

    def _preempt(self, row: Sequence) -> None:
        self._bring_up_to_date(row)
        self._let_go(row, row.known - 1 if row.decodes_since != NEVER else row.computed)
        row.computed = 0
        row.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(row)
        self._blocked_at = NOWHERE

    def _steps_alike(self) -> int:
        """Steps until something is to be told or memory runs out; the first one's blocks are taken."""
        marks = self._marks
        while marks and (marks[0][3].ended or marks[0][2] != marks[0][3].spell):
            heapq.heappop(marks)
        wanted = marks[0][0] - self.steps
        assert wanted > 0
        size = self.limits.block_tokens
        free = self.pool.free
        if free >= self._batch * (1 + wanted // size):
            return wanted
        for step in range(1, wanted):
            free -= self._growth[(self.steps + step) % size]
            if free < 0:
                return step
        return wanted

    # -- finishing ----------------------------------------------------------------------------------------------------

    def _finish(self, plan: Plan) -> Leap:
        self._settle(plan, plan.steps)
        self._plan = None
        told: list[Sequence] = []
        marks, steps = self._marks, self.steps
        often = self._often((self._at - plan.began) / plan.steps / 1e9)
        while marks and marks[0][0] <= steps:
            _, place, spell, row = marks[0]
            if row.ended or spell != row.spell:
                heapq.heappop(marks)
                continue
            grown = steps - row.decodes_since
            row.known += grown
            row.emitted += grown
            row.decodes_since = steps
            row.last_token_at = self._at
            told.append(row)
            left = row.request.output_tokens - row.emitted
            if left > 0:
                heapq.heapreplace(marks, (steps + min(left, often), place, spell, row))
            else:
                heapq.heappop(marks)
                self._remove(row, row.known - 1)
        for row in plan.first_tokens:
            if not row.ended:
                self._first_token(row, often)
                told.append(row)
        return Leap(self._at, told)

    def _settle(self, plan: Plan, steps: int) -> None:
        """The plan's first `steps` steps are over; the blocks of the first of them have been taken."""
        size = self.limits.block_tokens
        if steps > 1:
            whole, rest = divmod(steps - 1, size)
            grown = whole * self._batch
            for step in range(1, rest + 1):
                grown += self._growth[(self.steps + step) % size]
            self.pool.take(grown)
        self.steps += steps
        self._context += self._batch * steps
        self.generated_tokens += self._batch * steps

    def _first_token(self, row: Sequence, often: int) -> None:
        row.known += 1
        row.emitted += 1
        row.last_token_at = self._at
        self.generated_tokens += 1
        if row.first_token_at is None:
            row.first_token_at = self._at
            self.prompt_tokens += row.request.prompt_tokens
        if row.emitted >= row.request.output_tokens:
            self._remove(row, row.known - 1)
            return
        row.decodes_since = self.steps
        row.spell += 1
        self._batch += 1
        self._context += row.known
        self._growth[(self.steps + 1 - row.known) % self.limits.block_tokens] += 1
        soon = min(row.request.output_tokens - row.emitted, often)
        heapq.heappush(self._marks, (self.steps + soon, row.place, row.spell, row))

    def _often(self, step_s: float) -> int:
        """Steps after which a row is told of, where they take so long."""
        return min(self._report_tokens, max(1, math.ceil(self._report_s / step_s)))

    def _bring_up_to_date(self, row: Sequence) -> None:
        if row.decodes_since != NEVER:
            grown = self.steps - row.decodes_since
            row.known += grown
            row.emitted += grown
            row.decodes_since = self.steps

    def _remove(self, row: Sequence, length: int) -> None:
        """The row is over; it has blocks for its first `length` tokens."""
        row.ended = True
        if row in self.running:
            self._let_go(row, length if row.decodes_since != NEVER else row.computed)
        else:
            self.waiting.remove(row)
        self._blocked_at = NOWHERE

    def _let_go(self, row: Sequence, length: int) -> None:
        """Out of the running rows, and its blocks with it."""
        size = self.limits.block_tokens
        del self.running[row]
        self.pool.give_back(row.named, -(-length // size) - len(row.named))
        row.named = []
        if row is self._prefilling:
            self._prefilling = None
        if row.decodes_since != NEVER:
            self._batch -= 1
            self._context -= row.known
            self._growth[(self.steps + 1 - row.known) % size] -= 1
            row.decodes_since = NEVER
            row.spell += 1


__all__ = ["NAMELESS", "Leap", "Sequence", "SkippingEngine"]
