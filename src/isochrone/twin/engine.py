"""An engine's twin in virtual time: submit requests, advance from step to step, see which rows got a token.

    engine.submit(now, TwinRequest("a", prompt_tokens=300, output_tokens=20))
    while (at := engine.next_event()) is not None:
        step = engine.advance(at)          # None: a step has begun; else: that step is done
        for row in step.emitted if step else (): ...

The twin reads no clock. `next_event` is the end of the step in flight, or the instant from which a step could begin.
Between two calls of `advance` the driver may submit, end or abort. One that ends in mid-step gives its blocks back at
once and the step takes as long as planned.
"""

from dataclasses import dataclass

from isochrone.nouns.instant import Instant, nanoseconds
from isochrone.twin.schedule import Limits, Plan, Scheduler
from isochrone.twin.sequence import Row, TwinRequest
from isochrone.twin.steptime import StepTime


@dataclass(frozen=True, slots=True)
class Step:
    """A step that is done."""

    began: Instant
    ended: Instant
    emitted: list[Row]
    """Rows that got one token each, in batch order."""
    decode_rows: int
    prefill_tokens: int


class Engine:
    """One engine. `pace` multiplies every step's duration: 2.5 for a slow card, 0.5 to run at twice the speed."""

    def __init__(self, limits: Limits, step_time: StepTime, pace: float = 1.0) -> None:
        assert pace > 0
        self.scheduler = Scheduler(limits)
        self.step_time = step_time
        self.pace = pace
        self._plan: Plan | None = None
        self._began: Instant = 0
        self._at: Instant = 0
        """End of the step in flight, or else the earliest start of the next one."""

    def submit(self, now: Instant, request: TwinRequest) -> Row:
        """Queue a request. It must fit the KV cache even at its full length, or it could never finish."""
        limits = self.scheduler.limits
        assert request.prompt_tokens > 0
        assert request.output_tokens > 0
        assert request.prompt_tokens + request.output_tokens <= limits.kv_blocks * limits.block_tokens
        row = Row(request, now, known=request.prompt_tokens)
        if self._idle():
            self._at = max(self._at, now)
        self.scheduler.waiting.append(row)
        return row

    def end(self, row: Row) -> None:
        """The row is over before its `output_tokens`: it drew an end-of-sequence token, or its client has left."""
        self.scheduler.remove(row)

    def next_event(self) -> Instant | None:
        """When `advance` has something to do; None while the engine is idle."""
        return None if self._idle() else self._at

    def advance(self, now: Instant) -> Step | None:
        """Finish the step in flight (returned), or begin the next one (None). Call it at `next_event()` or later."""
        assert not self._idle()
        assert now >= self._at
        if self._plan is not None:
            return self._finish(self._plan)
        self._begin(self._at)
        return None

    def _idle(self) -> bool:
        return self._plan is None and not self.scheduler.running and not self.scheduler.waiting

    def _begin(self, now: Instant) -> None:
        plan = self.scheduler.plan(now)
        self._plan, self._began = plan, now
        self._at = now + self.duration(plan)

    def duration(self, plan: Plan) -> int:
        """Nanoseconds that the planned step takes."""
        tokens = plan.decode_rows + plan.prefill_tokens
        return max(1, nanoseconds(self.step_time.seconds(tokens, plan.kv_read, plan.pairs) * self.pace))

    def _finish(self, plan: Plan) -> Step:
        emitted = self.scheduler.apply(plan, self._at)
        self._plan = None
        for row in emitted:
            row.last_token_at = self._at
            if row.first_token_at is None:
                row.first_token_at = self._at
        return Step(self._began, self._at, emitted, plan.decode_rows, plan.prefill_tokens)

    def skip_to(self, now: Instant) -> None:
        """Between steps: the next one begins no earlier than `now` (a driver in real time that has fallen far
        behind)."""
        if self._plan is None:
            self._at = max(self._at, now)
