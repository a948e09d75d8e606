"""The life of an instance: which states there are changes between, and what brings them about.

    joining   --answers--------------------------------> ready
    ready     --misses or failures---------------------> suspect --more of them--> ejected
    suspect   --answers; after failures: a success-----> ready
    ejected   --answers, not sooner than its rest------> probing
    probing   --answers; after failures: a success-----> ready
    probing   --misses; its trial fails----------------> ejected, for a longer rest
    any       --drain----------------------------------> draining --undrain--> ready, joining or probing
    any       --withdraw-------------------------------> gone, for good
    ready, suspect, probing --hangs--------------------> ejected, until a sign of work, or a long rest

Two kinds of evidence are kept apart. A *heartbeat* says that a process listens; an engine whose process has died
behind its HTTP server still answers it, so an instance that was put out by failing *requests* comes back only by a
request that succeeds. Such requests are trials: one at a time while probing, one after each good heartbeat while
suspect. A trial that fails at once costs its client next to nothing, and there is one a heartbeat, so that the instance
is back within a heartbeat of being well; each that fails late doubles the rest before the next. The other way round,
tokens that flow prove life whatever the heartbeat says: a long prefill can starve `/health` for many seconds.

The client's mistakes (4xx) and "busy" (429, 503) are no failures: the caller reports them by `attempt_ended`.
"""

from isochrone.nouns.instance import State
from isochrone.nouns.settings import Settings

CHANGES: dict[State, frozenset[State]] = {
    State.JOINING: frozenset({State.READY, State.DRAINING, State.GONE}),
    State.READY: frozenset({State.SUSPECT, State.EJECTED, State.DRAINING, State.GONE}),
    State.SUSPECT: frozenset({State.READY, State.EJECTED, State.DRAINING, State.GONE}),
    State.EJECTED: frozenset({State.PROBING, State.DRAINING, State.GONE}),
    State.PROBING: frozenset({State.READY, State.EJECTED, State.DRAINING, State.GONE}),
    State.DRAINING: frozenset({State.JOINING, State.READY, State.PROBING, State.GONE}),
    State.GONE: frozenset(),
}
"""Every change there is; `Life` makes no other."""

REST_HEARTBEATS_MAX = 16
"""Longest rest of an ejected instance, in heartbeats: 1, 2, 4, 8, 16 as ejections repeat. Also that of one that hangs:
without a sign of work it is tried only then."""
STEADY_SUCCESSES = 16
"""Successes in a row, or good heartbeats where nothing but heartbeats was ever wrong, that wipe out past ejections."""


class Life:
    """State of one instance. Each method returns the state where it, or `placeable`, has changed; else None."""

    __slots__ = ("_answers", "_ejections", "_failed_before", "_refused", "_rest", "_silent", "_steady", "_trial",
                 "_trial_due", "failures", "misses", "state", "unproven")  # fmt: skip

    def __init__(self) -> None:
        self.state = State.JOINING
        self.misses = 0
        """Heartbeats missed in a row."""
        self.failures = 0
        """Attempts failed in a row."""
        self.unproven = False
        """Requests have failed here: only a request that succeeds brings it back."""
        self._answers = 0
        self._refused = False
        self._trial: int | None = None
        self._trial_due = False
        self._ejections = 0
        self._rest = 0
        self._steady = 0
        self._silent = False
        """Ejected because it hung."""
        self._failed_before = False
        """It was unproven before that."""

    @property
    def placeable(self) -> bool:
        """May take a request now: ready, or on trial with the trial's place free."""
        if self.state is State.READY:
            return True
        return self._trial is None and (self.state is State.PROBING or self._trial_due)

    @property
    def last_resort(self) -> bool:
        """May take a request when no instance is placeable."""
        return self.state is State.SUSPECT

    @property
    def fail_open(self) -> bool:
        """May take a request when there is not even a last resort: its heartbeats time out but nothing was refused and
        no request has failed. When all instances look like that, they are more likely busy than dead."""
        return self.state is State.EJECTED and not self.unproven and not self._refused

    def probed(self, ok: bool, settings: Settings, alive: bool = False, refused: bool = False) -> State | None:
        """One heartbeat came back, or did not.

        `alive`: tokens have flowed from the instance since the last one, which proves as much as an answer.
        `refused`: the connection was refused, or the answer was an error; not just slow.
        """
        good = ok or alive
        self.misses = 0 if good else self.misses + 1
        self._answers = self._answers + 1 if good else 0
        self._refused = not good and (self._refused or refused)
        state = self.state
        if state is State.READY:
            if good and not self.unproven:
                self._count_steady()
            return self._after_miss(settings)
        if state is State.JOINING:
            return self._go(State.READY) if good else None
        if state is State.SUSPECT:
            return self._suspect_answered() if good else self._after_miss(settings)
        if state is State.EJECTED:
            self._rest -= 1
            return self._go(State.PROBING) if good and self._rest <= 0 else None
        if state is State.PROBING:
            if not good:
                return self._eject()
            proven = not self.unproven and self._answers >= settings.heartbeat_ready_answers
            return self._go(State.READY) if proven else None
        return None

    def dispatched(self, attempt: int) -> State | None:
        """A request goes to the instance. While it is on trial, that takes the trial's place."""
        if self.state is State.READY or not self.placeable:
            return None
        self._trial, self._trial_due = attempt, False
        return self.state

    def attempt_succeeded(self, attempt: int | None = None) -> State | None:
        """A request was answered to the end."""
        if self.state in (State.EJECTED, State.GONE, State.JOINING):
            return None  # late news from before
        self.failures, self.misses, self.unproven = 0, 0, False
        if self.state in (State.SUSPECT, State.PROBING):
            return self._go(State.READY)
        if self.state is State.READY:
            self._count_steady()
        return None

    def attempt_failed(self, settings: Settings, attempt: int | None = None, at_once: bool = False) -> State | None:
        """The instance failed a request: unreachable, reset, 5xx, or silent beyond a limit.

        `at_once`: before it had done anything for it, so that trying it again costs nobody much.
        """
        self._steady = 0
        if self.state is State.PROBING:
            if attempt is not None and attempt != self._trial:
                return None  # sent before the ejection, which it was part of
            self.unproven = True
            if at_once:
                self._rest = 1
                return self._go(State.EJECTED)
            return self._eject()
        if self.state not in (State.READY, State.SUSPECT):
            return None
        freed = self._free_trial(attempt)
        self.failures += 1
        if self.failures >= settings.failures_eject:
            self.unproven = True
            return self._eject()
        if self.failures >= settings.failures_suspect:
            self.unproven = True
            return self._go(State.SUSPECT) or freed
        return freed

    def attempt_ended(self, attempt: int) -> State | None:
        """A request ended in a way that says nothing about the instance: client's mistake, busy, client gone."""
        return self._free_trial(attempt)

    def hung(self) -> State | None:
        """It has work and does none. Heartbeats prove nothing then: its HTTP server may well answer them."""
        if self.state not in (State.READY, State.SUSPECT, State.PROBING):
            return None
        before, self.unproven = self.unproven, True
        changed = self._eject()
        self._rest = REST_HEARTBEATS_MAX
        self._silent, self._failed_before = True, before
        return changed

    def stirred(self) -> State | None:
        """A sign of work from it: if it was ejected for showing none, that is over, and it may be tried at once."""
        if not self._silent:
            return None
        self._silent, self.unproven = False, self._failed_before
        return self._go(State.PROBING) if self.state is State.EJECTED else None

    def told(self) -> State | None:
        """It answered a scrape: as good as a heartbeat to one whose rest is over and whose heartbeats are answered."""
        well = self.state is State.EJECTED and self._answers > 0 and self._rest <= 1
        return self._go(State.PROBING) if well else None

    def drain(self) -> State | None:
        """Finish what runs, take nothing new."""
        return None if self.state in (State.GONE, State.DRAINING) else self._go(State.DRAINING)

    def undrain(self) -> State | None:
        """Take requests again: at once where nothing speaks against it."""
        if self.state is not State.DRAINING:
            return None
        if self.unproven:
            return self._go(State.PROBING)
        return self._go(State.READY if self._answers else State.JOINING)

    def withdraw(self) -> State | None:
        """Removed, for good."""
        return None if self.state is State.GONE else self._go(State.GONE)

    def _after_miss(self, settings: Settings) -> State | None:
        """Ready or suspect: enough misses?"""
        if self.misses >= settings.heartbeat_eject_misses:
            return self._eject()
        return self._go(State.SUSPECT) if self.misses >= settings.heartbeat_suspect_misses else None

    def _suspect_answered(self) -> State | None:
        """A suspect's good heartbeat: all is well, or a trial is due."""
        if not self.unproven:
            return self._go(State.READY)
        before = self.placeable
        self._trial_due = True
        return self.state if self.placeable != before else None

    def _eject(self) -> State | None:
        self._rest = min(2**self._ejections, REST_HEARTBEATS_MAX)
        self._ejections = min(self._ejections + 1, REST_HEARTBEATS_MAX.bit_length())
        self.failures = 0
        return self._go(State.EJECTED)

    def _count_steady(self) -> None:
        self._steady += 1
        if self._steady >= STEADY_SUCCESSES:
            self._steady, self._ejections = 0, 0

    def _free_trial(self, attempt: int | None) -> State | None:
        """The trial is over, or was not this attempt."""
        if attempt is None or attempt != self._trial:
            return None
        before = self.placeable
        self._trial = None
        return self.state if self.placeable != before else None

    def _go(self, state: State) -> State | None:
        if state is self.state:
            return None
        assert state in CHANGES[self.state], f"{self.state} -> {state}"
        self.state = state
        self._trial, self._trial_due, self._steady = None, False, 0
        self._silent = False
        return state
