"""Approximate prefix index: what each instance's KV cache probably holds.

Nobody tells us here (cache events are another source): a prompt sent to an instance is taken as cached there, and
forgotten in least-recently-used order once the instance's capacity is reached.

Instances are known by small integers, slots. `block hash -> bitmask of slots` answers for all instances at once. Each
slot has an ordered table of its blocks, oldest first; a prompt's blocks are entered deepest first, so that the tail
goes before the head. Hence a slot that holds a block holds all blocks before it (checked by a property test), the
masks along a chain only lose bits, and the places where they do are found by bisection instead of a walk.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from isochrone.kv.hashing import BLOCK_SIZES

EXACT_LEVELS = 8
"""Deepest distinct hit depths that are told apart; below them the depth is halved step by step, so never overstated."""
CAPACITY_BYTES = 8 * 1024 * 1024
"""Hashed text that a slot of unknown KV size remembers: two million tokens of English."""
ENTRIES_MAX = 2_000_000
"""(slot, block) pairs in all, some 200 bytes of memory each. At the limit the fullest slot forgets its oldest."""
EVICTION_BATCH = 256
"""Pairs that are forgotten at once then."""

Level = tuple[int, int]
"""(depth, mask): every slot in the mask holds at least the first `depth` blocks."""


class _Held:
    """One slot's blocks, oldest first."""

    __slots__ = ("bit", "capacity_bytes", "sizes", "used_bytes")

    def __init__(self, slot: int, capacity_bytes: int) -> None:
        self.bit = 1 << slot
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.sizes: OrderedDict[int, int] = OrderedDict()
        """Block hash -> bytes."""


class PrefixIndex:
    """Longest cached prefix of a prompt, by instance slot."""

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES, entries_max: int = ENTRIES_MAX) -> None:
        self._capacity_bytes = capacity_bytes
        self._entries_max = entries_max
        self._masks: dict[int, int] = {}
        self._slots: dict[int, _Held] = {}
        self._entries = 0

    @property
    def entries(self) -> int:
        """(slot, block) pairs held, never over `entries_max`."""
        return self._entries

    def used_bytes(self, slot: int) -> int:
        """Hashed text that the slot is taken to hold."""
        held = self._slots.get(slot)
        return held.used_bytes if held else 0

    def set_capacity(self, slot: int, capacity_bytes: int) -> None:
        """How much hashed text the slot's cache holds, once that is known. Shrinks at once."""
        held = self._held(slot)
        held.capacity_bytes = capacity_bytes
        self._shrink(held, capacity_bytes)

    def insert(self, slot: int, blocks: Sequence[int]) -> None:
        """The slot has computed, or just reused, a prompt of these blocks (a whole chain from block 0)."""
        held = self._held(slot)
        sizes, masks, bit = held.sizes, self._masks, held.bit
        known = bisect_left(blocks, True, key=lambda block: block not in sizes)
        for k in range(len(blocks) - 1, known - 1, -1):
            block = blocks[k]
            sizes[block] = BLOCK_SIZES[k]
            masks[block] = masks.get(block, 0) | bit
        for k in range(known - 1, -1, -1):
            sizes.move_to_end(blocks[k])
        held.used_bytes += sum(BLOCK_SIZES[known : len(blocks)])
        self._entries += len(blocks) - known
        if held.used_bytes > held.capacity_bytes:
            self._shrink(held, held.capacity_bytes)
        if self._entries > self._entries_max:
            self._make_room()

    def clear(self, slot: int) -> None:
        """The slot's cache is empty (its engine restarted). Its capacity stays."""
        if held := self._slots.get(slot):
            self._shrink(held, 0)

    def remove(self, slot: int) -> None:
        """The slot is free for another instance."""
        self.clear(slot)
        self._slots.pop(slot, None)

    def match(self, blocks: Sequence[int]) -> list[Level]:
        """Who holds how much of the chain: levels deepest first, each mask contained in the next."""
        masks = self._masks
        if not blocks or blocks[0] not in masks:
            return []
        depth = _last(masks, blocks, len(blocks), 0)
        everyone = masks[blocks[0]]
        levels: list[Level] = []
        while True:
            mask = masks[blocks[depth - 1]]
            levels.append((depth, mask))
            if mask == everyone:
                return levels
            depth = _last(masks, blocks, depth, mask) if len(levels) < EXACT_LEVELS else depth // 2

    def hits(self, blocks: Sequence[int], slots: Sequence[int]) -> list[int]:
        """Blocks of the chain that each of the slots holds. For a few slots."""
        levels = self.match(blocks)
        if not levels:
            return [0] * len(slots)
        return [_depth(levels, slot) for slot in slots]

    def hits_vector(self, blocks: Sequence[int], size: int) -> NDArray[np.int32]:
        """The same for slots 0 .. size-1 at once."""
        levels = self.match(blocks)
        if not levels:
            return np.zeros(size, np.int32)
        width = -(-size // 8)
        below = (1 << size) - 1
        packed = b"".join([(mask & below).to_bytes(width, "little") for _, mask in levels])
        bits = np.unpackbits(
            np.frombuffer(packed, np.uint8).reshape(len(levels), width), axis=1, count=size, bitorder="little"
        )
        depths = [depth for depth, _ in levels]
        steps = np.array([depth - less for depth, less in zip(depths, [*depths[1:], 0], strict=True)], np.int32)
        hits: NDArray[np.int32] = steps @ bits
        return hits

    def _held(self, slot: int) -> _Held:
        held = self._slots.get(slot)
        if held is None:
            held = self._slots[slot] = _Held(slot, self._capacity_bytes)
        return held

    def _shrink(self, held: _Held, to_bytes: int) -> None:
        sizes, masks, others = held.sizes, self._masks, ~held.bit
        used, before = held.used_bytes, len(sizes)
        while used > to_bytes:
            block, size = sizes.popitem(last=False)
            used -= size
            mask = masks[block] & others
            if mask:
                masks[block] = mask
            else:
                del masks[block]
        held.used_bytes = used
        self._entries -= before - len(sizes)

    def _make_room(self) -> None:
        """Over the limit of entries: the fullest slots forget until a batch of room is free."""
        goal = max(0, self._entries_max - EVICTION_BATCH)
        while self._entries > goal:
            fullest = max(self._slots.values(), key=lambda held: len(held.sizes))
            for _ in range(min(len(fullest.sizes), self._entries - goal)):
                self._forget_oldest(fullest)

    def _forget_oldest(self, held: _Held) -> None:
        block, size = held.sizes.popitem(last=False)
        held.used_bytes -= size
        self._entries -= 1
        mask = self._masks[block] & ~held.bit
        if mask:
            self._masks[block] = mask
        else:
            del self._masks[block]


def _last(masks: dict[int, int], blocks: Sequence[int], below: int, mask: int) -> int:
    """The largest depth up to `below` whose mask differs from `mask`, for masks that only lose bits with depth.

    With mask 0: the deepest level that anyone holds. Depth 1 always differs where this is called.
    """
    low, high = 1, below
    while low < high:
        middle = (low + high + 1) // 2
        if masks.get(blocks[middle - 1], 0) == mask:
            high = middle - 1
        else:
            low = middle
    return low


def _depth(levels: list[Level], slot: int) -> int:
    for depth, mask in levels:
        if mask >> slot & 1:
            return depth
    return 0
