"""The ledger of one instance: every attempt carries what it put in, and takes out exactly that.

Sums are integers (tokens, nanoseconds), so that they return to zero exactly when the last attempt ends.

An attempt waits for its prefill, then decodes. Engines prefill first come, first served, so pending work is
what the waiting attempts put in, less what the head of the line has had done since it became the head.

For learning step times the ledger also counts what never goes back: tokens and attention pairs prefilled, and decoding
attempts and their context summed over time. A window of a stream is the difference of two readings.
"""

from typing import NamedTuple

import msgspec

from isochrone.nouns.instant import SECOND, Instant


class Window(NamedTuple):
    """What went on around a stream while it got some tokens."""

    span_ns: int
    batch: float
    """Decoding attempts, mean over time."""
    context: float
    """KV tokens that their steps read, mean over time."""
    prefilled_tokens: float
    prefilled_pairs: float


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
    pairs_ahead: int = 0
    batch_then: int = 0
    context_then: int = 0
    busy_then: bool = False
    slot_bound: bool = False
    """No slot was free: it waited for one, which says nothing about prefill."""

    # Start of the running window of decode gaps.
    window_at: Instant = 0
    window_tokens: int = 0
    window_prefilled: tuple[float, float] = (0.0, 0.0)
    window_batch_ns: int = 0
    window_context_ns: int = 0

    @property
    def pairs(self) -> int:
        """Attention pairs of its prefill: each uncached token against all before it."""
        return self.uncached_tokens * (2 * self.prompt_tokens - self.uncached_tokens) // 2


class Ledger(msgspec.Struct, gc=False):
    """What we have in flight on one instance. Counts of ours only; `foreign` load comes from scrapes."""

    waiting: dict[int, Flight] = msgspec.field(default_factory=dict)
    """Attempts before their first token, in order of dispatch."""
    decoding: dict[int, Flight] = msgspec.field(default_factory=dict)
    waiting_ns: int = 0
    """Sum of the waiting attempts' work."""
    waiting_tokens: int = 0
    """Sum of the waiting attempts' uncached prompt tokens."""
    waiting_pairs: int = 0
    """Sum of the attention pairs of their prefill."""
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
    prefilled_pairs: int = 0
    """Counter: attention pairs of that prefill."""
    batch_ns: int = 0
    """Counter: decoding attempts times nanoseconds."""
    context_ns: int = 0
    """Counter: KV tokens read by decode steps, times nanoseconds."""
    counted_at: Instant = 0
    """Up to when the last two are counted."""

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
        self.waiting_pairs += flight.pairs
        self.kv_tokens += flight.uncached_tokens
        flight.owed_tokens = flight.expected_output
        self.owed_tokens += flight.owed_tokens

    def first_token(self, flight: Flight, now: Instant) -> None:
        """Prefill is over; the attempt decodes from here on."""
        assert not flight.decoding
        self._count(now)
        self._stop_waiting(flight, now)
        flight.decoding = True
        flight.first_token_at = now
        self.prefilled_tokens += flight.uncached_tokens
        self.prefilled_pairs += flight.pairs
        self.decoding[flight.attempt] = flight
        self.context_tokens += flight.prompt_tokens
        self.progress(flight, 1)
        self.begin_window(flight, now)

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
        self._count(now)
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
        self.waiting_pairs -= flight.pairs

    def begin_window(self, flight: Flight, now: Instant) -> None:
        """A new window of the flight's stream."""
        self._count(now)
        flight.window_at, flight.window_tokens = now, flight.output_tokens
        flight.window_prefilled = self._prefilled(now)
        flight.window_batch_ns, flight.window_context_ns = self.batch_ns, self.context_ns

    def window(self, flight: Flight, now: Instant) -> Window:
        """What went on since the flight's window began."""
        self._count(now)
        span = max(1, now - flight.window_at)
        tokens, pairs = self._prefilled(now)
        tokens_before, pairs_before = flight.window_prefilled
        return Window(
            span,
            (self.batch_ns - flight.window_batch_ns) / span,
            (self.context_ns - flight.window_context_ns) / span,
            max(0.0, tokens - tokens_before),
            max(0.0, pairs - pairs_before),
        )

    def ahead(self, now: Instant) -> tuple[int, int]:
        """Tokens and pairs of pending prefill, with the head's progress taken off."""
        tokens, pairs = self._head_done(now)
        return self.waiting_tokens - int(tokens), self.waiting_pairs - int(pairs)

    def kv_resident(self, now: Instant) -> int:
        """KV tokens of ours that the engine should hold by now: it allocates a prompt's as the prefill goes on."""
        return self.kv_tokens - self.waiting_tokens + int(self._head_done(now)[0])

    def _prefilled(self, now: Instant) -> tuple[float, float]:
        """Tokens and pairs prefilled so far, the head's progress included: a long prompt spans many windows."""
        tokens, pairs = self._head_done(now)
        return self.prefilled_tokens + tokens, self.prefilled_pairs + pairs

    def _head_done(self, now: Instant) -> tuple[float, float]:
        """Tokens and pairs that the head of the line should have had done by now."""
        if not self.waiting:
            return 0.0, 0.0
        head = next(iter(self.waiting.values()))
        done_ns = now - self.head_since
        share = done_ns / head.work_ns if done_ns < head.work_ns else 1.0
        tokens = share * head.uncached_tokens
        return tokens, tokens * (head.prompt_tokens - head.uncached_tokens + 0.5 * tokens)

    def _count(self, now: Instant) -> None:
        span = now - self.counted_at
        self.batch_ns += span * len(self.decoding)
        self.context_ns += span * self.context_tokens
        self.counted_at = now

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
            or self.waiting_pairs
            or self.context_tokens
            or self.kv_tokens
            or self.owed_tokens
        )
