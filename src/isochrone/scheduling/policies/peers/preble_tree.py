"""Preble's radix tree over prompts: nodes are stretches of text that prompts share, with what is known of each.

A node belongs to the instances that prompts through it were sent to. A node longer than everything before it is large;
the load of a request is booked on the last large node of its path. Blocks of text stand for tokens; what follows a
prompt's last whole block belongs to that prompt alone.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from isochrone.nouns.instant import SECOND, Instant

NODES_MAX = 100_000
"""Nodes in the copy of Preble's tree; beyond it leaves without load go, the longest unused first."""
FORGET_AT_ONCE = 8
"""Nodes looked at for that with each prompt."""
WINDOW_NS = 3 * 60 * SECOND


class Node:
    """One stretch of text. `blocks` is empty for the root and for a prompt's rest that is no whole block."""

    def __init__(self, blocks: Sequence[int], parent: "Node | None", tokens: int, before: int) -> None:
        self.blocks = blocks
        self.parent = parent
        self.tokens = tokens
        self.before = before
        """Tokens of the path above."""
        self.children: dict[int, Node] = {}
        self.allocated: set[int] = set()
        """Slots that prompts through it were sent to."""
        self.running: dict[int, int] = {}
        """Requests in flight through it, by slot."""
        self.count = 0
        """Requests booked on it in the window, ..."""
        self.prompt_tokens = 0
        self.hit_tokens = 0
        self.output_tokens = 0
        """... and the output length of the last of them."""
        self.ttfts: dict[int, deque[tuple[Instant, float]]] = {}
        """When and how long, by slot."""

    @property
    def context(self) -> int:
        """Tokens from the prompt's start to the node's end."""
        return self.before + self.tokens

    @property
    def large(self) -> bool:
        return self.tokens > self.before

    def path(self) -> Iterator["Node"]:
        """The node and all above it."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def important(self) -> "Node":
        """The last large node of the path; the root's children all are."""
        return next(node for node in self.path() if node.large or node.parent is None)

    def overloaded(self, slot: int, now: Instant) -> bool:
        """TTFT in the younger half of the window is at least twice that in the older half."""
        times = self.ttfts.get(slot, ())
        older = [ttft_s for at, ttft_s in times if now - WINDOW_NS <= at < now - WINDOW_NS // 2]
        younger = [ttft_s for at, ttft_s in times if at >= now - WINDOW_NS // 2]
        return bool(older and younger) and sum(younger) / len(younger) >= 2 * sum(older) / len(older)


class Tree:
    """All prompts seen."""

    def __init__(self) -> None:
        self.root = Node((), None, 0, 0)
        self._used: dict[Node, None] = {}
        """Nodes below the root, the longest unused first."""

    def find(self, blocks: Sequence[int]) -> tuple[Node, int, int]:
        """The node in which the longest known part of the prompt ends, the blocks in that part, and those of them in
        the node."""
        node, depth, inside = self.root, 0, 0
        while depth < len(blocks) and (child := node.children.get(blocks[depth])) is not None:
            inside = _shared(child.blocks, blocks[depth:])
            node, depth = child, depth + inside
            if inside < len(child.blocks):
                break
        return node, depth, inside

    def insert(self, blocks: Sequence[int], ends: Sequence[int], tokens: int) -> tuple[Node, Node | None]:
        """Enter a prompt of so many tokens; block k ends at token `ends[k]`. Returns its leaf, and the node that was
        cut in two for it: that is the lower half now, its parent the upper."""
        node, depth, inside = self.find(blocks)
        known = ends[depth - 1] if depth else 0
        cut = None
        if inside < len(node.blocks):
            cut, node = node, self._split(node, inside, known)
        if depth < len(blocks):
            leaf = Node(blocks[depth:], node, ends[-1] - known, node.context)
            node.children[blocks[depth]] = leaf
        else:  # what follows the last whole block is this prompt's alone, and not kept in the tree
            leaf = Node((), node, max(1, tokens - known), node.context)
        for passed in leaf.path():
            if passed.blocks:
                self._used.pop(passed, None)
                self._used[passed] = None
        self._forget()
        return leaf, cut

    def nodes(self) -> list[Node]:
        """All below the root."""
        return list(self._used)

    def _split(self, node: Node, keep: int, at: int) -> Node:
        """Cut the node after `keep` blocks, some `at` tokens into the prompt; returns the new upper half."""
        parent = node.parent
        assert parent is not None
        at = min(max(at, node.before), node.context)  # sizes are estimates, and each prompt has its own
        upper = Node(node.blocks[:keep], parent, at - node.before, node.before)
        upper.allocated, upper.running = set(node.allocated), dict(node.running)
        upper.children[node.blocks[keep]] = node
        parent.children[upper.blocks[0]] = upper
        node.tokens, node.before = node.context - at, at
        node.blocks, node.parent = node.blocks[keep:], upper
        return upper

    def _forget(self) -> None:
        for _ in range(min(FORGET_AT_ONCE, len(self._used) - NODES_MAX)):
            node = next(iter(self._used))
            del self._used[node]
            if node.children or node.running or node.count:
                self._used[node] = None
            elif node.parent is not None:
                del node.parent.children[node.blocks[0]]


def _shared(known: Sequence[int], blocks: Sequence[int]) -> int:
    """Blocks that two chains share: as hashes are chained, one that is equal stands for all before it."""
    low, high = 0, min(len(known), len(blocks))
    while low < high:
        middle = (low + high + 1) // 2
        if known[middle - 1] == blocks[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
