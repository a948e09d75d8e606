"""Dynamo's KV router: blocks to prefill plus blocks to decode.

    max(0, (P + n) / 16 - hit) + D
        P    uncached prompt tokens sent and without a first token
        n    tokens of this prompt; hit: its blocks of 16 tokens in the instance's cache
        D    blocks of all prompts in flight there, this one's included, shared blocks once

Scale and credit 1, decay 0, temperature 0, active-request weight 0: the defaults. Its credits for caches in host memory
(0.75) and on disk (0.25) have nothing to count here, and its queue has no threshold by default. Ties by chance. Output
tokens are not counted, as there by default. Source: ai-dynamo/dynamo 07a6c9ce, `scheduling/selector/default.rs`; the
router knows the engines' caches from their events, here the hits are those of our index.

`dynamo-lmetric` is the product that its pull request 11028 offers as an option: prefill blocks * (D + 1).
"""

from typing import ClassVar, TypeVar

import numpy as np

from isochrone.instances.table import Instance
from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.policies.followed import Followed, hits_of, waiting_tokens
from isochrone.scheduling.policies.peers.active import ActivePrompts
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask

BLOCK_TOKENS = 16

Blocks = TypeVar("Blocks", float, np.ndarray)
"""Of one instance, or of all by position."""


class Dynamo(Plain):
    """The default, in blocks."""

    name: ClassVar[str] = "dynamo"
    summary: ClassVar[str] = "Dynamo: blocks to prefill plus blocks in use, shared ones once"
    term: ClassVar[str] = "blocks"
    listens: ClassVar[bool] = True
    ties_by_hit: ClassVar[bool] = False

    def __init__(self, chance: Chance) -> None:
        self._active = ActivePrompts()
        self._pending = Followed(waiting_tokens)

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        if pool.places is not None:
            return self._cost(*self._blocks_of_many(ask, request, pool))
        tokens, hits, active = ask.prompt_tokens, ask.hits, self._active
        prices = []
        for position, instance in enumerate(pool.members):
            hit = int(hits[position]) // BLOCK_TOKENS if hits is not None else 0
            prefill = max(0.0, (instance.ledger.waiting_tokens + tokens) / BLOCK_TOKENS - hit)
            slot = instance.slot
            decode = (active.tokens(slot) + tokens - active.shared(ask, request, slot)) / BLOCK_TOKENS
            prices.append(self._cost(prefill, decode))
        return prices

    def chosen(self, ask: Ask, request: Request, pool: Pool, position: int, now: Instant) -> None:
        self._active.enter(ask, request, pool.slots[position])

    def ended(self, request: Request, instance: Instance, output_tokens: int, now: Instant) -> None:
        self._active.leave(request)

    def gone(self, instance: Instance) -> None:
        self._active.remove(instance.slot)

    def _blocks_of_many(self, ask: Ask, request: Request, pool: Pool) -> tuple[np.ndarray, np.ndarray]:
        """Prefill and decode blocks by position: the loop above in arrays."""
        tokens, active, slots = ask.prompt_tokens, self._active, pool.slots
        (pending,) = self._pending.of(pool)
        prefill = np.maximum(0.0, (pending + tokens) / BLOCK_TOKENS - hits_of(ask.hits) // BLOCK_TOKENS)
        in_use = active.tokens_of_many(slots) + tokens - active.shared_of_many(ask, request, slots)
        decode: np.ndarray = in_use / BLOCK_TOKENS
        return prefill, decode

    def _cost(self, prefill_blocks: Blocks, decode_blocks: Blocks) -> Blocks:
        cost: Blocks = prefill_blocks + decode_blocks
        return cost


class DynamoLMetric(Dynamo):
    """The multiplicative option."""

    name: ClassVar[str] = "dynamo-lmetric"
    summary: ClassVar[str] = "Dynamo's optional product of blocks to prefill and blocks in use"
    term: ClassVar[str] = "block_blocks"

    def _cost(self, prefill_blocks: Blocks, decode_blocks: Blocks) -> Blocks:
        return prefill_blocks * (decode_blocks + 1.0)
