"""llm-d's "sticky until saturated": keep to warm instances until they are 18 s behind, then fewest tokens.

    sticky: at least 0.8 of the prompt's blocks are cached there
    the filter keeps the sticky ones, unless  min T(sticky) - min T(others) > 18 s,   T = P / 15,928 tokens/s
    of those kept: the least  min(1, (P + u) / 4,194,304)
        P  uncached prompt tokens sent and without a first token; u: uncached tokens of this prompt there

All counts are the gateway's own. Source: llm-d/llm-d-router ebab6879, `filter/prefixcacheaffinity`,
`scorer/tokenload`, `dataproducer/inflightload`; the rate is theirs for a 32B model on two H100 and stays as it is. What
the filter drops costs 1 more here, so that a retry has somewhere to go.
"""

from typing import ClassVar

from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.policies.peers.llm_d import match_ratios
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask

AFFINITY_RATIO = 0.8
PENALTY_S = 18.0
"""Sticky instances may be this much later, in seconds to the first token, than the others."""
PREFILL_TOKENS_PER_S = 15_928.0
LOAD_TOKENS = 4_194_304.0
DROPPED = 1.0


class LlmDTokenLoad(Plain):
    """Filter and score above."""

    name: ClassVar[str] = "llm-d-token-load"
    summary: ClassVar[str] = "llm-d: warm instances until they are 18 s behind, of those the fewest tokens in flight"
    term: ClassVar[str] = "load"
    ties_by_hit: ClassVar[bool] = False

    def __init__(self, chance: Chance) -> None:
        pass

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        pending = [instance.ledger.waiting_tokens for instance in pool.members]
        sticky = [ratio >= AFFINITY_RATIO for ratio in match_ratios(ask, len(pending))]
        filtered = _filters(pending, sticky)
        hits = ask.hits if ask.hits is not None else [0] * len(pending)
        return [
            min(1.0, (tokens + ask.prompt_tokens - int(hit)) / LOAD_TOKENS)
            + (DROPPED if filtered and not warm else 0.0)
            for tokens, hit, warm in zip(pending, hits, sticky, strict=True)
        ]


def _filters(pending: list[int], sticky: list[bool]) -> bool:
    """Whether only the sticky rows are kept."""
    if not any(sticky) or all(sticky):
        return False
    warm = min(tokens for tokens, is_warm in zip(pending, sticky, strict=True) if is_warm)
    cold = min(tokens for tokens, is_warm in zip(pending, sticky, strict=True) if not is_warm)
    return (warm - cold) / PREFILL_TOKENS_PER_S <= PENALTY_S
