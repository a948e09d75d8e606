"""Paged KV memory with a prefix cache.

The KV cache is a fixed number of blocks. A full block has a hash that stands for its tokens and all before them;
whoever needs the same hash shares the block (it is counted, not copied). A block that nobody uses keeps its content
and its hash until another needs its place: the block unused for longest goes first. A sequence's blocks are given
back last block first, so that of one prefix the tail is lost before the head.
"""

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """`total` blocks, by number. Used + free = total at all times."""

    def __init__(self, total: int) -> None:
        assert total > 0
        self.total = total
        self.evictions = 0
        self._users: list[int] = []
        self._hashes: list[int | None] = []
        self._by_hash: dict[int, int] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()
        """Blocks that were used and are free now, longest unused first. Blocks never used have no entry anywhere."""

    @property
    def free(self) -> int:
        """Blocks that can be taken, cached or not."""
        return self.total - len(self._users) + len(self._unused)

    @property
    def used(self) -> int:
        return len(self._users) - len(self._unused)

    @property
    def cached(self) -> int:
        """Blocks that can be found by hash."""
        return len(self._by_hash)

    def find(self, hashes: Sequence[int], most: int) -> list[int]:
        """The longest run of cached blocks from the start of `hashes`, at most `most`. Takes nothing yet."""
        found: list[int] = []
        by_hash = self._by_hash
        for value in hashes[:most]:
            block = by_hash.get(value)
            if block is None:
                break
            found.append(block)
        return found

    def fits(self, shared: Sequence[int], fresh: int) -> bool:
        """Whether `shared` cached blocks and `fresh` others can be taken together."""
        users = self._users
        revived = sum(1 for block in shared if users[block] == 0)
        return revived + fresh <= self.free

    def share(self, blocks: Sequence[int]) -> None:
        """Use cached blocks once more."""
        for block in blocks:
            if self._users[block] == 0:
                del self._unused[block]
            self._users[block] += 1

    def take(self, count: int) -> list[int]:
        """`count` blocks to write to, evicting where needed. The caller has asked `free` before."""
        assert count <= self.free
        return [self._take_one() for _ in range(count)]

    def _take_one(self) -> int:
        if len(self._users) < self.total:
            self._users.append(1)
            self._hashes.append(None)
            return len(self._users) - 1
        block, _ = self._unused.popitem(last=False)
        old = self._hashes[block]
        if old is not None:
            del self._by_hash[old]
            self._hashes[block] = None
            self.evictions += 1
        self._users[block] = 1
        return block

    def name(self, block: int, value: int) -> None:
        """A block is full: make it findable. If the same content is cached already, the older block stays the one
        found."""
        if self._hashes[block] is None and value not in self._by_hash:
            self._hashes[block] = value
            self._by_hash[value] = block

    def give_back(self, blocks: Sequence[int]) -> None:
        """A sequence lets go of its blocks."""
        for block in reversed(blocks):
            self._users[block] -= 1
            assert self._users[block] >= 0
            if self._users[block] == 0:
                self._unused[block] = None
