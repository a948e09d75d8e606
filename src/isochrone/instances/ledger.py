"""The ledger of one instance: every attempt carries what it put in, and takes out exactly that.

Sums are integers (tokens, nanoseconds), so that they return to zero exactly when the last attempt ends.

An attempt waits for its prefill, then decodes. Engines prefill first come, first served, so pending work is
what the waiting attempts put in, less what the head of the line has had done since it became the head.
"""

import msgspec

from isochrone.nouns.instant import SECOND, Instant


class Flight(msgspec.Struct, gc=False, kw_only=True):
    """One attempt in flight, with everything that it put into its instance's ledger."""

    attempt: int
    request: str
    slot: int
    incarnation: int
    ordinal: int
    dispatched_at: Instant
    prompt_tokens: int
    uncached_tokens: int
    work_ns: int
    """Prefill work expected at dispatch."""
    expected_output: int
    """Output tokens expected at dispatch."""
    generates: bool = True
    tpot_slo_s: float | None = None
    decoding: bool = False
    first_token_at: Instant | None = None
    output_tokens: int = 0
    owed_tokens: int = 0
    """Part of `expected_output` still counted as owed in the ledger."""

    # What the engine had before it when it was sent: the regressors of a first-token sample.
    tokens_ahead: int = 0
    pairs_ahead: float = 0.0
    batch_then: int = 0
    context_then: int = 0
    busy_then: bool = False

    # Start of the running window of decode gaps.
    window_at: Instant = 0
    window_tokens: int = 0
    window_prefilled: int = 0


class Ledger(msgspec.Struct, gc=False):
    """What we have in flight on one instance. Counts of ours only; `foreign` load comes from scrapes."""

    waiting: dict[int, Flight] = msgspec.field(default_factory=dict)
    """Attempts before their first token, in order of dispatch."""
    decoding: dict[int, Flight] = msgspec.field(default_factory=dict)
    waiting_ns: int = 0
    """Sum of the waiting attempts' work."""
    waiting_tokens: int = 0
    """Sum of the waiting attempts' uncached prompt tokens."""
    context_tokens: int = 0
    """KV tokens that decode steps read: context of every decoding attempt."""
    kv_tokens: int = 0
    """KV tokens that our attempts occupy: uncached prompt plus output so far."""
    owed_tokens: int = 0
    """Output tokens expected and not yet seen."""
    head_since: Instant = 0
    """When the attempt at the head of the line became the head."""
    prefilled_tokens: int = 0
    """Counter: uncached prompt tokens whose prefill has ended (never taken out)."""

    @property
    def in_flight(self) -> int:
        return len(self.waiting) + len(self.decoding)

    def enter(self, flight: Flight, now: Instant) -> None:
        """A dispatch: the whole prompt is pending."""
        if not self.waiting:
            self.head_since = now
        self.waiting[flight.attempt] = flight
        self.waiting_ns += flight.work_ns
        self.waiting_tokens += flight.uncached_tokens
        self.kv_tokens += flight.uncached_tokens
        flight.owed_tokens = flight.expected_output
        self.owed_tokens += flight.owed_tokens

    def first_token(self, flight: Flight, now: Instant) -> None:
        """Prefill is over; the attempt decodes from here on."""
        assert not flight.decoding
        self._stop_waiting(flight, now)
        flight.decoding = True
        flight.first_token_at = now
        self.prefilled_tokens += flight.uncached_tokens
        self.decoding[flight.attempt] = flight
        self.context_tokens += flight.prompt_tokens
        self.progress(flight, 1)

    def progress(self, flight: Flight, output_tokens: int) -> None:
        """Output so far, never less than before."""
        grown = output_tokens - flight.output_tokens
        if grown <= 0 or not flight.decoding:
            return
        flight.output_tokens = output_tokens
        self.context_tokens += grown
        self.kv_tokens += grown
        paid = min(grown, flight.owed_tokens)
        flight.owed_tokens -= paid
        self.owed_tokens -= paid

    def leave(self, flight: Flight, now: Instant) -> None:
        """The attempt is over, however it ended: take out exactly what it put in."""
        if flight.decoding:
            del self.decoding[flight.attempt]
            self.context_tokens -= flight.prompt_tokens + flight.output_tokens
        else:
            self._stop_waiting(flight, now)
        self.kv_tokens -= flight.uncached_tokens + flight.output_tokens
        self.owed_tokens -= flight.owed_tokens
        flight.owed_tokens = 0

    def _stop_waiting(self, flight: Flight, now: Instant) -> None:
        if next(iter(self.waiting)) == flight.attempt:
            self.head_since = now
        del self.waiting[flight.attempt]
        self.waiting_ns -= flight.work_ns
        self.waiting_tokens -= flight.uncached_tokens

    def head(self) -> Flight | None:
        """The waiting attempt that the engine works on."""
        return next(iter(self.waiting.values())) if self.waiting else None

    def behind_head_ns(self) -> int:
        """Pending prefill behind the head of the line."""
        head = self.head()
        return self.waiting_ns - head.work_ns if head else 0

    def head_due(self) -> Instant:
        """When the head of the line should be done; 0 when nobody waits."""
        head = self.head()
        return self.head_since + head.work_ns if head else 0

    def pending_s(self, now: Instant) -> float:
        """Pending prefill in seconds, with the head's progress taken off."""
        return (self.behind_head_ns() + max(0, self.head_due() - now)) / SECOND

    def is_zero(self) -> bool:
        """True when nothing is in flight and every sum has returned to zero."""
        return not (
            self.waiting
            or self.decoding
            or self.waiting_ns
            or self.waiting_tokens
            or self.context_tokens
            or self.kv_tokens
            or self.owed_tokens
        )
