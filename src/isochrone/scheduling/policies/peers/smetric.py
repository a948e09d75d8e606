"""SMetric: a conversation stays with its instance while that one meets the TTFT target; else work times requests.

    work  = u * (1 + (n - u/2) / crossover)            uncached tokens u of n, with or without the attention term
    queue = work sent and without a first token + own work
    score = queue * R                                  R: requests in flight; the least is taken, ties by chance
    the instance with the deepest hit is kept, if this is a follow-up turn, hit > 0.5 * the turn before, and
        queue / rate <= 1.0 * (1.0 s + 0.0625 s per 1,000 tokens of prompt), or no instance can do that
        rate = 90th percentile of the last 64 of work / TTFT, from 8 samples on; before that it is taken to be met

Source: vllm-project/router 8bef7312, `policies/smetric.rs`, for the rule; that project's page on its policies for the
defaults (0.5, 1.0, 1.0 s, 0.0625 s, no attention term; a tree of 2^26 characters an instance); arXiv 2607.08565. There
it counts characters, here tokens.

What a turn is it reads from the chat's messages, which stay with the relay here. A follow-up turn is one whose session
(where the client names it) was seen before, with that turn's prompt; else a chat of three messages or more, all but two
of which were there before (an answer and a question are new); else, where nothing is known of messages (token ids,
traces), any prompt, if more than half of it is known, since a conversation sends all of itself again.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import repeat
from typing import ClassVar

import numpy as np

from isochrone.instances.table import Instance
from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant, seconds
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.policies.followed import Followed
from isochrone.scheduling.policies.followed import in_flight as requests_on
from isochrone.scheduling.policies.peers.ranks import in_flight, places
from isochrone.scheduling.policies.peers.routed import RoutedText, matched_tokens
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask

HIT_RATIO = 0.5
SLACK = 1.0
TTFT_S = 1.0
TTFT_S_PER_TOKEN = 0.0625e-3
TREE_BYTES = 1 << 26
SWEEP_S = 30.0
RATE_WINDOW = 64
RATE_SAMPLES_MIN = 8
RATE_QUANTILE = 0.9
SESSIONS_MAX = 100_000
"""Sessions whose last prompt's length the copy of SMetric remembers; the oldest goes."""


class _Rate:
    """Work done a second, from times to first tokens."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=RATE_WINDOW)
        self.rate: float | None = None

    def record(self, rate: float) -> None:
        self._samples.append(rate)
        if len(self._samples) >= RATE_SAMPLES_MIN:
            self.rate = sorted(self._samples)[int((len(self._samples) - 1) * RATE_QUANTILE + 0.5)]


class SMetric(Plain):
    """The rule above, with work in uncached tokens alone: the default."""

    name: ClassVar[str] = "smetric"
    summary: ClassVar[str] = "SMetric: a conversation's instance while it meets TTFT, else least work times requests"
    term: ClassVar[str] = "place"
    listens: ClassVar[bool] = True

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._requests = Followed(requests_on)
        self._tree = RoutedText(TREE_BYTES, SWEEP_S)
        self._pending: dict[int, float] = {}
        """Work without a first token, by slot."""
        self._charges: dict[str, tuple[int, float, Instant]] = {}
        """Request -> slot, its work, when it was sent; until its first token."""
        self._rates: dict[int, _Rate] = {}
        self._turns: OrderedDict[str, int] = OrderedDict()
        """Session -> prompt tokens of its last turn."""

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        if pool.places is not None:
            return self._prices_of_many(ask, request, pool, pool.places.slots)
        hits = [matched_tokens(ask, request, depth) for depth in self._tree.hits(request.blocks, pool.slots)]
        queues = [
            self._pending.get(instance.slot, 0.0) + self._work(ask, hit, instance)
            for hit, instance in zip(hits, pool.members, strict=True)
        ]
        keys = [(queue * load, self._chance.random()) for queue, load in zip(queues, in_flight(pool), strict=True)]
        deepest = max(range(len(hits)), key=hits.__getitem__)
        return places(keys, deepest if self._stays(ask, request, pool, hits[deepest], queues, deepest) else None)

    def chosen(self, ask: Ask, request: Request, pool: Pool, position: int, now: Instant) -> None:
        self._release(request)
        instance = pool.members[position]
        slot = instance.slot
        hit = matched_tokens(ask, request, self._tree.hits(request.blocks, [slot])[0])
        work = self._work(ask, hit, instance)
        self._pending[slot] = self._pending.get(slot, 0.0) + work
        self._charges[request.id] = (slot, work, now)
        self._tree.insert(slot, request.blocks, now)
        if request.session:
            self._turns[request.session] = ask.prompt_tokens
            self._turns.move_to_end(request.session)
            if len(self._turns) > SESSIONS_MAX:
                self._turns.popitem(last=False)

    def first_token(self, request: Request, instance: Instance, now: Instant) -> None:
        charge = self._release(request)
        if charge is not None and charge[0] == instance.slot and now > charge[2]:
            rate = self._rates.setdefault(instance.slot, _Rate())
            rate.record(charge[1] / seconds(now - charge[2]))

    def ended(self, request: Request, instance: Instance, output_tokens: int, now: Instant) -> None:
        self._release(request)

    def gone(self, instance: Instance) -> None:
        self._tree.remove(instance.slot)
        self._pending.pop(instance.slot, None)
        self._rates.pop(instance.slot, None)
        self._charges = {request: charge for request, charge in self._charges.items() if charge[0] != instance.slot}

    def _work(self, ask: Ask, hit: int, instance: Instance) -> float:
        return float(ask.prompt_tokens - hit)

    def _prices_of_many(self, ask: Ask, request: Request, pool: Pool, slots: np.ndarray) -> np.ndarray:
        """The same in arrays, chance drawn in the same order."""
        hits = self._tree.tokens_of_many(ask, request, slots)
        pending = np.fromiter(map(self._pending.get, pool.slots, repeat(0.0)), np.float64, len(slots))
        queues = pending + self._works(ask, hits, pool)
        (requests,) = self._requests.of(pool)
        chance = self._chance.random
        order = np.lexsort((np.array([chance() for _ in pool.slots]), queues * requests))
        deepest = int(hits.argmax())
        if self._stays(ask, request, pool, hits[deepest], queues, deepest):
            order = np.concatenate([[deepest], order[order != deepest]])
        found = np.empty(len(slots))
        found[order] = np.arange(len(slots))
        return found

    def _stays(
        self, ask: Ask, request: Request, pool: Pool, hit: float, queues: Sequence[float] | np.ndarray, deepest: int
    ) -> bool:
        """Whether it is kept on the position with the deepest hit."""
        known = self._known_tokens(ask, request)
        if known is None or hit <= HIT_RATIO * known:
            return False
        target_s = SLACK * (TTFT_S + TTFT_S_PER_TOKEN * ask.prompt_tokens)
        if self._meets(pool.slots[deepest], queues[deepest], target_s):
            return True
        return not any(self._meets(slot, queue, target_s) for slot, queue in zip(pool.slots, queues, strict=True))

    def _works(self, ask: Ask, hits: np.ndarray, pool: Pool) -> np.ndarray:
        """`_work` by position."""
        return ask.prompt_tokens - hits

    def _meets(self, slot: int, queue: float, target_s: float) -> bool:
        known = self._rates.get(slot)
        return known is None or known.rate is None or queue / known.rate <= target_s

    def _known_tokens(self, ask: Ask, request: Request) -> float | None:
        """Tokens of the turn before; None for a first turn."""
        if request.session:
            return self._turns.get(request.session)
        messages = request.size.messages
        if messages:
            return ask.prompt_tokens * (messages - 2) / messages if messages >= 3 else None
        return float(ask.prompt_tokens)

    def _release(self, request: Request) -> tuple[int, float, Instant] | None:
        charge = self._charges.pop(request.id, None)
        if charge is not None and charge[0] in self._pending:
            left = self._pending[charge[0]] - charge[1]
            self._pending[charge[0]] = left if left > 1e-6 else 0.0
        return charge


class SMetricAttention(SMetric):
    """With the attention term: the crossover length is b/q of the class's learnt step times (there an option)."""

    name: ClassVar[str] = "smetric-attention"
    summary: ClassVar[str] = "SMetric with the attention of long prompts in its work"

    def _work(self, ask: Ask, hit: int, instance: Instance) -> float:
        uncached = ask.prompt_tokens - hit
        _, token_s, _, pair_s = instance.step_times.coefficients
        if token_s <= 0.0:
            return float(uncached)
        return uncached * (1.0 + (ask.prompt_tokens - 0.5 * uncached) * pair_s / token_s)

    def _works(self, ask: Ask, hits: np.ndarray, pool: Pool) -> np.ndarray:
        works = [self._work(ask, int(hit), instance) for hit, instance in zip(hits, pool.members, strict=True)]
        return np.array(works)
