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

from collections.abc import Sequence
from typing import ClassVar

from isochrone.instances.table import Instance
from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.policies.peers.active import ActivePrompts
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask

BLOCK_TOKENS = 16


class Dynamo(Plain):
    """The default, in blocks."""

    name: ClassVar[str] = "dynamo"
    summary: ClassVar[str] = "Dynamo: blocks to prefill plus blocks in use, shared ones once"
    term: ClassVar[str] = "blocks"
    listens: ClassVar[bool] = True
    ties_by_hit: ClassVar[bool] = False

    def __init__(self, chance: Chance) -> None:
        self._active = ActivePrompts()

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        return [
            self._cost(prefill, decode)
            for prefill, decode in zip(_prefill_blocks(ask, pool), self._decode_blocks(ask, request, pool), strict=True)
        ]

    def chosen(self, ask: Ask, request: Request, pool: Pool, position: int, now: Instant) -> None:
        self._active.enter(ask, request, pool.slots[position])

    def ended(self, request: Request, instance: Instance, output_tokens: int, now: Instant) -> None:
        self._active.leave(request)

    def gone(self, instance: Instance) -> None:
        self._active.remove(instance.slot)

    def _decode_blocks(self, ask: Ask, request: Request, pool: Pool) -> Sequence[float]:
        return [
            (self._active.tokens(slot) + ask.prompt_tokens - self._active.shared(ask, request, slot)) / BLOCK_TOKENS
            for slot in pool.slots
        ]

    def _cost(self, prefill_blocks: float, decode_blocks: float) -> float:
        return prefill_blocks + decode_blocks


class DynamoLMetric(Dynamo):
    """The multiplicative option."""

    name: ClassVar[str] = "dynamo-lmetric"
    summary: ClassVar[str] = "Dynamo's optional product of blocks to prefill and blocks in use"
    term: ClassVar[str] = "block_blocks"

    def _cost(self, prefill_blocks: float, decode_blocks: float) -> float:
        return prefill_blocks * (decode_blocks + 1.0)


def _prefill_blocks(ask: Ask, pool: Pool) -> Sequence[float]:
    tokens, hits = ask.prompt_tokens, ask.hits
    return [
        max(
            0.0,
            (instance.ledger.waiting_tokens + tokens) / BLOCK_TOKENS
            - (int(hits[position]) // BLOCK_TOKENS if hits is not None else 0),
        )
        for position, instance in enumerate(pool.members)
    ]
