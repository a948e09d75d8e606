"""Paged KV memory by counts: `BlockPool` for a driver that skips steps.

Most blocks of a workload are never looked for again: output, the ends of prompts, prompts that nobody shares. Those
need no identity here, only a number. Blocks with a hash are kept one by one as in `BlockPool`, and both kinds grow old
in one line, so that the same blocks are lost in the same order: never used ones are taken first, then those unused for
longest.

Hashes are 0 or more; a run of nameless blocks stands in the line under a negative number.
"""

from collections import OrderedDict
from collections.abc import Sequence

NAMELESS = -1
"""In a row's list of blocks: a copy of a block that another row had named before."""


class CountedPool:
    """`total` blocks. Used + free = total at all times."""

    def __init__(self, total: int) -> None:
        assert total > 0
        self.total = total
        self.evictions = 0
        """Named blocks that were lost to make room."""
        self.free = total
        """Blocks that can be taken, cached or not."""
        self._never_used = total
        self._users: dict[int, int] = {}
        """Named block -> rows that use it; 0: cached, unused."""
        self._unused: OrderedDict[int, int] = OrderedDict()
        """Longest unused first. Named block -> 1, run of nameless blocks -> how many."""
        self._runs = 0

    @property
    def used(self) -> int:
        return self.total - self.free

    @property
    def cached(self) -> int:
        """Blocks that can be found by hash."""
        return len(self._users)

    def find(self, hashes: Sequence[int], most: int) -> int:
        """Length of the longest run of cached blocks from the start of `hashes`, at most `most`."""
        users = self._users
        found = 0
        for value in hashes[:most]:
            if value not in users:
                break
            found += 1
        return found

    def fits(self, shared: Sequence[int], fresh: int) -> bool:
        """Whether `shared` cached blocks and `fresh` others can be taken together."""
        users = self._users
        revived = sum(1 for value in shared if users[value] == 0)
        return revived + fresh <= self.free

    def share(self, hashes: Sequence[int]) -> None:
        """Use cached blocks once more."""
        users = self._users
        for value in hashes:
            if users[value] == 0:
                del self._unused[value]
                self.free -= 1
            users[value] += 1

    def take(self, count: int) -> None:
        """`count` blocks to write to, forgetting the longest unused where needed."""
        assert count <= self.free
        self.free -= count
        fresh = min(count, self._never_used)
        self._never_used -= fresh
        count -= fresh
        unused = self._unused
        while count:
            key, held = unused.popitem(last=False)
            if key >= 0:
                del self._users[key]
                self.evictions += 1
            elif held > count:
                unused[key] = held - count
                unused.move_to_end(key, last=False)
                return
            count -= held

    def name(self, value: int) -> int:
        """A block in use is full: make it findable. NAMELESS where the same content is cached already."""
        if value in self._users:
            return NAMELESS
        self._users[value] = 1
        return value

    def give_back(self, named: Sequence[int], nameless: int) -> None:
        """A row lets go of its blocks, the last ones first: `nameless` ones behind the `named`."""
        self._rest(nameless)
        users = self._users
        for value in reversed(named):
            if value == NAMELESS:
                self._rest(1)
                continue
            left = users[value] - 1
            assert left >= 0
            users[value] = left
            if left == 0:
                self._unused[value] = 1
                self.free += 1

    def _rest(self, count: int) -> None:
        """A run of nameless blocks joins the line."""
        if count:
            self._runs += 1
            self._unused[-1 - self._runs] = count
            self.free += count

    def forget(self) -> None:
        """Empty the cache of what nobody uses; blocks in use keep their names until their rows end."""
        for key in self._unused:
            if key >= 0:
                del self._users[key]
        self._never_used += sum(self._unused.values())
        self._unused.clear()
