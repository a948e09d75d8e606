"""Data-parallel ranks of one engine, in lock step.

With expert parallelism every layer ends in an exchange between all ranks, so nobody goes on before the slowest is
there: a step of the group takes as long as the longest of its ranks' steps would take alone, and the next one begins
for all at once. A rank that has nothing to do takes part with an empty batch, which is never the slowest. (vLLM's
data-parallel engines step together in the same way, dummy batches included.) Each rank has its own queue, KV memory
and prefix cache, and is an instance of its own for whoever sends requests.

There are no leaps here: the slowest rank may be another one in every step.
"""

from isochrone.nouns.instant import Instant
from isochrone.twin.leaps import Leap
from isochrone.twin.schedule import Limits
from isochrone.twin.skipping import SkippingEngine
from isochrone.twin.steptime import StepTime

AFTER_NS = 1
"""The next step begins so much after the end of the one before: by then every rank has told what it gave, and its
driver may have sent more."""


class LockStep:
    """What the ranks of one engine share: when the step in flight ends, and when the next may begin."""

    def __init__(self) -> None:
        self.ranks: list[Rank] = []
        self.ends_at: Instant | None = None
        """None between steps."""
        self.free_at: Instant = 0

    def replace(self, old: "SkippingEngine | None", new: "Rank") -> None:
        """A rank joins, for the first time or in place of a process that is gone."""
        self.ranks = [*(rank for rank in self.ranks if rank is not old), new]

    def begin(self, at: Instant) -> None:
        """One step of every rank that has something to do."""
        busy = [rank for rank in self.ranks if rank.busy]
        self.ends_at = max(rank.begin_step(at) for rank in busy)
        for rank in busy:
            rank.end_step_at(self.ends_at)

    def finish(self) -> None:
        """The step in flight is over; each rank keeps what it gave until it is asked."""
        assert self.ends_at is not None
        self.free_at, self.ends_at = self.ends_at + AFTER_NS, None
        for rank in self.ranks:
            rank.finish_step()


class Rank(SkippingEngine):
    """One rank. To its driver it is an engine like any other."""

    def __init__(
        self,
        group: LockStep,
        limits: Limits,
        step_time: StepTime,
        pace: float = 1.0,
        report_tokens: int = 32,
        report_s: float = 0.5,
    ) -> None:
        super().__init__(limits, step_time, pace, report_tokens, report_s)
        self.group = group
        self._leap: Leap | None = None
        """What the last step gave, until it is told."""

    def next_event(self) -> Instant | None:
        """When `advance` has something to do; None while the rank is idle, whatever the others do."""
        if self._leap is not None:
            return self._leap.ended
        if self._idle():
            return None
        ends_at = self.group.ends_at
        return ends_at if ends_at is not None else max(self.group.free_at, self._at)

    def advance(self, now: Instant) -> Leap | None:
        """Tell of the step that is over, or begin the next one for the whole group (None)."""
        at = self.next_event()
        assert at is not None
        assert now >= at
        if self._leap is None:
            if self.group.ends_at is None:
                self.group.begin(at)
                return None
            self.group.finish()
        leap, self._leap = self._leap, None
        return leap

    # -- what the group calls -----------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return not self._idle()

    def begin_step(self, at: Instant) -> Instant:
        """Begin a step; returns when it would end if the rank were alone."""
        self._at = at
        self._begin()
        return self._at

    def end_step_at(self, at: Instant) -> None:
        """The slowest rank is done then."""
        self._at = at

    def finish_step(self) -> None:
        if self._plan is not None:
            self._leap = self._finish(self._plan)

    def _steps_alike(self) -> int:
        return 1


__all__ = ["LockStep", "Rank"]
