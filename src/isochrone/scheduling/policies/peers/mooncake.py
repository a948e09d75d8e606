"""Mooncake's cache-aware scheduling (its paper's algorithm 1): least time to the first token.

    T(queue) + T(prefill of the uncached tokens)
        T(queue)  the same estimate over the prompts sent and without a first token, whole

From general knowledge of the paper (arXiv 2407.00079), not from its code: what is open (the "conductor") is an index
only. Two parts have no place here: fetching a better prefix from another instance, which needs a store that all share,
and refusing what would be late, which is admission's business. The estimate is b tokens + q attention pairs of the
class's learnt step times, without what decoding adds: the paper's prefill instances do not decode.
"""

from typing import ClassVar

from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask


class Mooncake(Plain):
    """The estimate above, in seconds."""

    name: ClassVar[str] = "mooncake"
    summary: ClassVar[str] = "Mooncake: queued prefill plus own prefill, in seconds"
    term: ClassVar[str] = "ttft"
    ties_by_hit: ClassVar[bool] = False

    def __init__(self, chance: Chance) -> None:
        pass

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        prices = []
        for position, instance in enumerate(pool.members):
            uncached = ask.prompt_tokens - (int(ask.hits[position]) if ask.hits is not None else 0)
            tokens = instance.ledger.waiting_tokens + uncached
            pairs = instance.ledger.waiting_pairs + uncached * (ask.prompt_tokens - 0.5 * uncached)
            _, token_s, _, pair_s = instance.step_times.coefficients
            prices.append(tokens * token_s + pairs * pair_s)
        return prices
