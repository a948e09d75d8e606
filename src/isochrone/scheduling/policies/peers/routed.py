"""What a router remembers of the prompts that it has sent where: the approximate prefix trees of several peers.

Theirs are radix trees over characters; here the unit is a block of text, so a match is cut down to whole blocks (512
bytes near the start). Each instance's text is bounded, not continuously but by a sweep now and then, as in the peers.
"""

from collections.abc import Sequence

import numpy as np

from isochrone.kv.hashing import block_end
from isochrone.kv.index import PrefixIndex
from isochrone.nouns.instant import Instant, nanoseconds
from isochrone.nouns.request import Request
from isochrone.scheduling.price import Ask

UNBOUNDED = 1 << 62
"""Between two sweeps an instance's text may grow; the index bounds all of them together."""
OWNERS_SLACK = 4096
"""Owners of forgotten blocks, in blocks, that may pile up beyond as many as there are entries before they go."""


def text_tokens(ask: Ask, request: Request, depth: int) -> int:
    """Tokens in the first `depth` blocks of the prompt."""
    return block_end(depth - 1) * ask.prompt_tokens // request.hashed_bytes if depth else 0


def matched_tokens(ask: Ask, request: Request, depth: int) -> int:
    """Tokens that need no prefill where the first `depth` blocks are cached: the last one always does."""
    return min(ask.prompt_tokens - 1, text_tokens(ask, request, depth))


class RoutedText:
    """Prompts by instance slot."""

    def __init__(self, bytes_max: int, sweep_s: float) -> None:
        self._bytes_max = bytes_max
        self._sweep_ns = nanoseconds(sweep_s)
        self._swept_at: Instant | None = None
        self._index = PrefixIndex(UNBOUNDED)
        self._slots: set[int] = set()
        self._owners: dict[int, int] = {}
        """Block -> the slot whose prompt brought it in."""

    def match(self, blocks: Sequence[int]) -> tuple[int, int]:
        """Blocks of the longest prefix that any slot holds, and the mask of the slots that hold all of it."""
        levels = self._index.match(blocks)
        return levels[0] if levels else (0, 0)

    def owner(self, blocks: Sequence[int]) -> int | None:
        """The one slot that a tree names for the longest match: who brought its last block in, while it holds it."""
        depth, mask = self.match(blocks)
        if not depth:
            return None
        slot = self._owners.get(blocks[depth - 1])
        if slot is None or not mask >> slot & 1:
            return (mask & -mask).bit_length() - 1
        return slot

    def hits(self, blocks: Sequence[int], slots: Sequence[int]) -> list[int]:
        """Blocks of the prompt that each slot holds."""
        return self._index.hits(blocks, slots)

    def tokens_of_many(self, ask: Ask, request: Request, slots: np.ndarray) -> np.ndarray:
        """`matched_tokens` on each of the slots."""
        depths = self._index.hits_vector(request.blocks, int(slots.max(initial=-1)) + 1)[slots]
        known = [matched_tokens(ask, request, depth) for depth in range(int(depths.max(initial=0)) + 1)]
        tokens: np.ndarray = np.array(known, dtype=np.float64)[depths]
        return tokens

    def used_bytes(self, slot: int) -> int:
        """Text kept for the slot."""
        return self._index.used_bytes(slot)

    def insert(self, slot: int, blocks: Sequence[int], now: Instant) -> None:
        """A prompt of these blocks goes to the slot."""
        if self._swept_at is None:
            self._swept_at = now
        elif now - self._swept_at >= self._sweep_ns:
            self._swept_at = now
            self._sweep()
        if blocks:
            self._slots.add(slot)
            for block in blocks:
                self._owners.setdefault(block, slot)
            self._index.insert(slot, blocks)
            if len(self._owners) > 2 * self._index.entries + OWNERS_SLACK:
                self._owners = {block: owner for block, owner in self._owners.items() if self._index.match((block,))}

    def remove(self, slot: int) -> None:
        """The slot is free for another instance."""
        self._slots.discard(slot)
        self._index.remove(slot)

    def _sweep(self) -> None:
        """Each slot forgets its oldest text beyond the bound."""
        for slot in self._slots:
            self._index.set_capacity(slot, self._bytes_max)
            self._index.set_capacity(slot, UNBOUNDED)
