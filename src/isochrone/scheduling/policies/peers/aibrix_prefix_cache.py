"""AIBrix's `prefix-cache`: the deepest match that is not much busier than the mean.

    R: requests that this gateway has in flight
    if max R - min R > 8: only the instances with the least R may match
    of those with a match, the deepest first (in whole per cent), then the least R: the first with
        R <= mean + 1 * standard deviation                                               (over all instances)
    else: the least R, ties by chance

Its index is one table for all instances: 200,000 blocks of 4 characters, least recently used out first, each for 20
minutes; that is 800 kB of text. Source: vllm-project/aibrix e3e10f9e, `algorithms/prefix_cache.go`,
`prefixcacheindexer/hash.go`, `algorithms/util.go` (the deviation is the sample's). A match is of whole blocks here (512
bytes near the start), not of 4 characters.
"""

from collections import OrderedDict
from math import sqrt
from statistics import fmean
from typing import ClassVar

from isochrone.instances.table import Instance
from isochrone.kv.hashing import BLOCK_SIZES, block_end
from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import SECOND, Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.policies.peers.ranks import in_flight, places
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask

IMBALANCE = 8
DEVIATIONS = 1.0
TABLE_BYTES = 200_000 * 4
KEPT_NS = 20 * 60 * SECOND


class Table:
    """Block -> mask of the instances that it was sent to."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, tuple[int, int, Instant]] = OrderedDict()
        """Mask, size in bytes, when it was last put; oldest first."""
        self._bytes = 0

    def depths(self, blocks: tuple[int, ...], slots: list[int], now: Instant) -> list[int]:
        """Blocks of the prompt that each slot is known for, from the start."""
        levels: list[tuple[int, int]] = []
        """Depth and mask of the slots known that deep, where the mask changes; the deepest first."""
        left = -1
        for depth, block in enumerate(blocks, 1):
            mask, _, put_at = self._blocks.get(block, (0, 0, 0))
            left &= mask if now - put_at <= KEPT_NS else 0
            if not left:
                break
            if levels and levels[0][1] == left:
                levels[0] = (depth, left)
            else:
                levels.insert(0, (depth, left))
        return [next((depth for depth, mask in levels if mask >> slot & 1), 0) for slot in slots]

    def put(self, blocks: tuple[int, ...], slot: int, now: Instant) -> None:
        """A prompt of these blocks goes to the slot."""
        for depth, block in enumerate(blocks):
            mask, size, _ = self._blocks.pop(block, (0, 0, 0))
            if not size:
                size = BLOCK_SIZES[depth]
                self._bytes += size
            self._blocks[block] = (mask | 1 << slot, size, now)
        while self._bytes > TABLE_BYTES or (self._blocks and now - next(iter(self._blocks.values()))[2] > KEPT_NS):
            self._bytes -= self._blocks.popitem(last=False)[1][1]

    def remove(self, slot: int) -> None:
        """The slot is free for another instance."""
        for block, (mask, size, put_at) in self._blocks.items():
            self._blocks[block] = (mask & ~(1 << slot), size, put_at)


class AibrixPrefixCache(Plain):
    """The rule above."""

    name: ClassVar[str] = "aibrix-prefix-cache"
    summary: ClassVar[str] = "AIBrix: deepest prefix match within a deviation of the mean load, else fewest requests"
    term: ClassVar[str] = "place"
    listens: ClassVar[bool] = True

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._table = Table()

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        loads = in_flight(pool)
        shuffled = [(load, self._chance.random()) for load in loads]
        depths = self._table.depths(request.blocks, pool.slots, now)
        least = min(loads)
        balanced = max(loads) - least <= IMBALANCE
        may_match = [balanced or load == least for load in loads]
        mean = fmean(loads)
        deviation = sqrt(sum((load - mean) ** 2 for load in loads) / max(1, len(loads) - 1))
        limit = mean + DEVIATIONS * deviation
        matches = sorted(
            (-(block_end(depth - 1) * 100 // request.hashed_bytes), *shuffled[position], position)
            for position, depth in enumerate(depths)
            if depth and may_match[position]
        )
        home = next((position for _, load, _, position in matches if load <= limit), None)
        return places(shuffled, home)

    def chosen(self, ask: Ask, request: Request, pool: Pool, position: int, now: Instant) -> None:
        self._table.put(request.blocks, pool.slots[position], now)

    def gone(self, instance: Instance) -> None:
        self._table.remove(instance.slot)
