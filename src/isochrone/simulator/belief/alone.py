"""One twin with nobody in front of it: who got the first and the last token when."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from isochrone.nouns.instant import SECOND, Instant, nanoseconds
from isochrone.twin.schedule import Limits
from isochrone.twin.sequence import TwinRequest
from isochrone.twin.skipping import SkippingEngine
from isochrone.twin.steptime import StepTime


@dataclass(frozen=True, slots=True)
class Ask:
    """One request that reaches the engine."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Served:
    """Latencies of each request in seconds, from its arrival."""

    ttft_s: np.ndarray
    e2e_s: np.ndarray
    output: np.ndarray

    @property
    def tpot_s(self) -> np.ndarray:
        """Mean gap between tokens; NaN for an answer of one token."""
        gaps = np.maximum(self.output - 1, 1)
        return np.where(self.output > 1, (self.e2e_s - self.ttft_s) / gaps, np.nan)

    def take(self, which: np.ndarray) -> "Served":
        return Served(self.ttft_s[which], self.e2e_s[which], self.output[which])


def serve(
    limits: Limits,
    step: StepTime,
    asks: Sequence[Ask],
    kind: Callable[..., SkippingEngine] = SkippingEngine,
    from_taken: bool = False,
) -> Served:
    """All requests on one twin of the kind, in order of arrival. `from_taken`: latencies count from when the engine has
    taken the request in, at the end of the step in flight."""
    engine = kind(limits, step, report_tokens=1 << 40, report_s=1e6)
    rows, taken_s = [], []
    for number, ask in enumerate(asks):
        now = nanoseconds(ask.at_s)
        assert number == 0 or now >= nanoseconds(asks[number - 1].at_s)
        _run_until(engine, now)
        rows.append(engine.submit(now, TwinRequest(str(number), ask.prompt_tokens, ask.output_tokens)))
        step_ends = engine.next_event()
        assert step_ends is not None
        taken_s.append(step_ends / SECOND if from_taken else ask.at_s)
    _run_until(engine, None)
    first, last = [], []
    for row in rows:
        assert row.first_token_at is not None
        assert row.last_token_at is not None
        first.append(row.first_token_at / SECOND)
        last.append(row.last_token_at / SECOND)
    at = np.array(taken_s)
    return Served(np.array(first) - at, np.array(last) - at, np.array([ask.output_tokens for ask in asks]))


def _run_until(engine: SkippingEngine, now: Instant | None) -> None:
    while (due := engine.next_event()) is not None and (now is None or due <= now):
        engine.advance(due)
