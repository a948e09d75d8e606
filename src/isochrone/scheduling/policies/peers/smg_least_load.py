"""smg's `least_load`: seconds until the instance has drained, plus a barrier before full KV memory.

    (queued + sent) / rate + 0.15 s * k / (1 - k)
        queued  uncached prompt tokens in the engine's waiting queue, as polled
        sent    prompt tokens that this gateway has sent since that poll (cached or not)
        rate    output tokens/s as polled, else 2,000: a decode rate used for prefill work
        k       KV usage as polled, at most 0.999
    not polled within 30 s, while others are: R * 1024 / mean rate of those others
    nobody polled: R, the requests in flight

Polled every 10 s. Source: lightseekorg/smg 73da68ca, `policies/least_load.rs`. What vLLM's metrics do not give is stood
in for: its waiting queue is a count, so the tokens are those of our latest so many attempts without a first token; its
output rate is a counter's difference between two polls.
"""

from typing import ClassVar, NamedTuple

from isochrone.instances.table import Instance
from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import SECOND, Instant, seconds
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask

POLL_NS = 10 * SECOND
STALE_NS = 3 * POLL_NS
KV_WEIGHT_S = 0.15
KV_CEILING = 0.999
RATE_DEFAULT = 2000.0
"""Tokens/s."""
MEAN_PROMPT_TOKENS = 1024


class Poll(NamedTuple):
    """One answer of an engine to a poll."""

    at: Instant
    queued_tokens: int
    rate: float
    """Output tokens/s since the poll before; 0 where unknown."""
    kv_usage_ratio: float
    generated: float | None
    """Counter of output tokens."""


class SmgLeastLoad(Plain):
    """The formula above."""

    name: ClassVar[str] = "smg-least-load"
    summary: ClassVar[str] = "smg: polled seconds to drain plus what was sent since, and a KV barrier"
    term: ClassVar[str] = "drain"
    listens: ClassVar[bool] = True
    ties_by_hit: ClassVar[bool] = False

    def __init__(self, chance: Chance) -> None:
        self._polls: dict[int, Poll] = {}
        self._sent: dict[int, int] = {}
        """Prompt tokens since the last poll, by slot."""

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        fresh = [self._fresh(slot, now) for slot in pool.slots]
        known = [poll.rate for poll in fresh if poll is not None and poll.rate > 0]
        nominal = sum(known) / len(known) if known else RATE_DEFAULT
        dark = not any(fresh)
        return [
            self._drain_s(slot, poll) if poll is not None
            else instance.ledger.in_flight * (1.0 if dark else MEAN_PROMPT_TOKENS / nominal)
            for slot, poll, instance in zip(pool.slots, fresh, pool.members, strict=True)
        ]  # fmt: skip

    def chosen(self, ask: Ask, request: Request, pool: Pool, position: int, now: Instant) -> None:
        slot = pool.slots[position]
        self._sent[slot] = self._sent.get(slot, 0) + ask.prompt_tokens

    def observed(self, instance: Instance, now: Instant) -> None:
        before, snapshot = self._polls.get(instance.slot), instance.snapshot
        if snapshot is None or (before is not None and now - before.at < POLL_NS):
            return
        generated, rate = snapshot.generation_tokens, 0.0
        if before is not None and before.generated is not None and generated is not None:
            rate = max(0.0, generated - before.generated) / seconds(now - before.at)
        queued = waiting_tokens(instance, snapshot.waiting or 0)
        self._polls[instance.slot] = Poll(now, queued, rate, snapshot.kv_usage_ratio or 0.0, generated)
        self._sent[instance.slot] = 0

    def gone(self, instance: Instance) -> None:
        self._polls.pop(instance.slot, None)
        self._sent.pop(instance.slot, None)

    def _fresh(self, slot: int, now: Instant) -> Poll | None:
        poll = self._polls.get(slot)
        return poll if poll is not None and now - poll.at <= STALE_NS else None

    def _drain_s(self, slot: int, poll: Poll) -> float:
        k = min(KV_CEILING, max(0.0, poll.kv_usage_ratio))
        work = poll.queued_tokens + self._sent.get(slot, 0)
        return work / (poll.rate or RATE_DEFAULT) + KV_WEIGHT_S * k / (1.0 - k)


def waiting_tokens(instance: Instance, waiting: int) -> int:
    """Uncached prompt tokens of the latest `waiting` attempts without a first token."""
    if waiting <= 0:
        return 0
    return sum(flight.uncached_tokens for flight in list(instance.ledger.waiting.values())[-waiting:])
