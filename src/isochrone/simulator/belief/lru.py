"""A plain prefix cache, written apart from the twin's: what the twin's hits are counted against.

Least recently used, whole blocks, a prompt's tail older than its head. Knows nothing of time, of running requests or of
the memory that they hold.
"""

from collections import OrderedDict
from collections.abc import Sequence


class PrefixLru:
    """At most `blocks` blocks."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._held: OrderedDict[int, None] = OrderedDict()

    def match(self, ids: Sequence[int]) -> int:
        """Blocks of the prompt that are held from its start on."""
        held, found = self._held, 0
        for one in ids:
            if one not in held:
                break
            found += 1
        return found

    def use(self, ids: Sequence[int]) -> int:
        """As `match`, and the whole prompt is held from now on."""
        found, held = self.match(ids), self._held
        for one in reversed(ids):
            held[one] = None
            held.move_to_end(one)
        while len(held) > self._blocks:
            held.popitem(last=False)
        return found
