"""What `skipping.py` works with: rows that are told of now and then, and steps that are alike.

m steps with B decoding rows that read K tokens of KV in the first one take

    m * (matrix(B) + o) + k * (m*K + B*m*(m-1)/2)         seconds

since each row reads one token more in every next step.
"""

import math
from dataclasses import dataclass, field

from isochrone.nouns.instant import Instant, nanoseconds
from isochrone.twin.sequence import TwinRequest
from isochrone.twin.steptime import StepTime

NEVER = -1


@dataclass(slots=True, eq=False)
class Sequence:
    """A request inside the engine. `known`, `emitted` are as of the last time that it was told of."""

    request: TwinRequest
    submitted_at: Instant
    known: int
    """Tokens that exist: prompt + output so far."""
    computed: int = 0
    """While it prefills: tokens whose KV is in memory."""
    emitted: int = 0
    named: list[int] = field(default_factory=list)
    """Its first blocks, by hash (or NAMELESS)."""
    cached: int = 0
    """Prompt tokens that the prefix cache held when it was first scheduled."""
    preemptions: int = 0
    scheduled_at: Instant | None = None
    first_token_at: Instant | None = None
    last_token_at: Instant | None = None
    ended: bool = False
    decodes_since: int = NEVER
    """Engine's step count at which `known` and `emitted` were right; NEVER: it does not decode."""
    place: int = 0
    """Counts those that were let in, up to this one: the order in which a step serves its rows."""
    spell: int = 0
    """Counts how often it began and stopped to decode: marks of an earlier spell mean nothing."""


@dataclass(slots=True)
class Plan:
    """The steps under way: `steps` alike, or one with prefill."""

    began: Instant
    steps: int
    batch: int
    kv_read: int
    """KV tokens that the first step reads."""
    matrix_s: float = 0.0
    """What each step takes but for reading KV."""
    first_tokens: list[Sequence] = field(default_factory=list)
    """Rows whose prefill ends with it."""
    prefill_tokens: int = 0
    pairs: float = 0.0
    """Attention pairs of those tokens."""
    lone: int = 0
    """Rows that need no more than their last token: they count as decoding, as in the step-by-step scheduler."""

    def span(self, steps: int, step_time: StepTime, pace: float) -> int:
        """Nanoseconds that the first `steps` steps take."""
        kv_read = steps * self.kv_read + self.batch * steps * (steps - 1) // 2
        return max(steps, nanoseconds((steps * self.matrix_s + step_time.kv_token_s * kv_read) * pace))

    def steps_by(self, now: Instant, step_time: StepTime, pace: float) -> int:
        """How many of the steps, less the last one, have ended by `now`: the quadratic solved, then set right."""
        elapsed_s = (now - self.began) / 1e9 / pace
        curve = 0.5 * step_time.kv_token_s * self.batch
        line = self.matrix_s + step_time.kv_token_s * self.kv_read - curve
        if curve > 0:
            guess = (math.sqrt(line * line + 4 * curve * max(elapsed_s, 0.0)) - line) / (2 * curve)
        else:
            guess = elapsed_s / line
        steps = min(max(int(guess), 0), self.steps - 1)
        while steps > 0 and self.began + self.span(steps, step_time, pace) > now:
            steps -= 1
        while steps + 1 < self.steps and self.began + self.span(steps + 1, step_time, pace) <= now:
            steps += 1
        return steps


@dataclass(frozen=True, slots=True)
class Leap:
    """Steps that are done."""

    ended: Instant
    told: list[Sequence]
    """Rows with a first token, enough progress to be told, or their last token."""
