"""Preble's load of an instance: what the nodes that requests were booked on in the last three minutes cost it."""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from isochrone.nouns.instant import Instant
from isochrone.scheduling.policies.peers.preble_tree import WINDOW_NS, Node

CROWD = 2
"""Requests from which a node counts when loads are balanced."""


def prefill_s(tokens: int, context: int) -> float:
    """Preble's own fit of Mistral 7B on an A6000: `tokens` new ones of `context` in all; milliseconds in the fit."""
    if tokens >= 384:
        linear = 0.10842571 * tokens + 4.209777054806409
    elif tokens >= 192:
        linear = -118 + 1.25 * tokens - 2.56e-3 * tokens**2
    else:
        linear = 22.0
    attention = 0.32 if context <= 1024 else 1.86e-4 * context + 0.159
    if context > 1024 and tokens <= 1024:
        attention /= 2
    quadratic = 0.0
    if tokens * context > 1024 * 1024:
        quadratic = 1.13e-3 * tokens + 1.75e-3 * context + 2.19e-6 * tokens * context
    return (linear + attention + quadratic) / 1e3 / 0.9


class Loads:
    """Sums by slot, kept up to date by taking a node's share out before it changes and putting it in again after."""

    def __init__(self) -> None:
        self._window: deque[tuple[Instant, Node, int, int]] = deque()
        """When, the node booked on, prompt tokens and known tokens of each request."""
        self._booked: dict[Node, None] = {}
        self._prefill: dict[tuple[int, bool], float] = {}
        """Seconds, by slot and whether the node counts when loads are balanced."""
        self._decode: dict[tuple[int, bool], float] = {}
        """Output tokens of requests in flight, likewise."""

    def of(self, slot: int, tpot_s: float, at_least: int = 1) -> float:
        """Load in seconds; `at_least` CROWD: of nodes of so many requests only."""
        kinds = (True,) if at_least >= CROWD else (False, True)
        return sum(
            self._prefill.get((slot, kind), 0.0) + self._decode.get((slot, kind), 0.0) * tpot_s for kind in kinds
        )

    def cost(self, node: Node, slot: int, tpot_s: float) -> float:
        """What one node costs one of its slots, in seconds."""
        return _prefill_share_s(node) + node.running.get(slot, 0) * node.output_tokens * tpot_s

    def booked(self, slot: int) -> Iterable[Node]:
        """Nodes of the slot that count when loads are balanced."""
        return [node for node in self._booked if node.count >= CROWD and slot in node.allocated]

    def book(self, node: Node, leaf: Node, tokens: int, output_tokens: int, now: Instant) -> None:
        """A request whose prompt's new part is `leaf` goes on the account of `node`."""
        known = leaf.before
        with self.changing(node):
            node.count += 1
            node.prompt_tokens += tokens
            node.hit_tokens += known
            node.output_tokens = output_tokens
            self._booked[node] = None
        self._window.append((now, node, tokens, known))

    def expire(self, now: Instant) -> None:
        """Forget requests older than the window; a node without any belongs to nobody."""
        while self._window and now - self._window[0][0] > WINDOW_NS:
            _, node, tokens, known = self._window.popleft()
            with self.changing(node):
                node.count -= 1
                node.prompt_tokens -= tokens
                node.hit_tokens -= known
                if node.count <= 0:
                    self._booked.pop(node, None)
                    node.allocated = set()

    def nodes(self) -> list[Node]:
        """All that requests of the window are booked on."""
        return list(self._booked)

    def was_cut(self, lower: Node) -> None:
        """A node was cut in two: its account goes to the upper half, if that is large and the lower no longer is."""
        upper = lower.parent
        if lower in self._booked and upper is not None:
            self._put(lower, -1.0, _prefill_share_s(lower, lower.tokens + upper.tokens, upper.before))
            if upper.large and not lower.large:
                self._hand_over(lower, upper)
            else:
                self._put(lower, 1.0, _prefill_share_s(lower))

    def remove(self, slot: int) -> None:
        """The slot is free for another instance."""
        for kind in (False, True):
            self._prefill.pop((slot, kind), None)
            self._decode.pop((slot, kind), None)

    @contextmanager
    def changing(self, node: Node) -> Iterator[None]:
        """Around every change of what a node's cost is made of."""
        if node in self._booked:
            self._put(node, -1.0, _prefill_share_s(node))
        yield
        if node in self._booked:
            self._put(node, 1.0, _prefill_share_s(node))

    def _put(self, node: Node, sign: float, prefill_share_s: float) -> None:
        kind = node.count >= CROWD
        for slot in node.allocated:
            key = (slot, kind)
            self._prefill[key] = self._prefill.get(key, 0.0) + sign * prefill_share_s
            owed = sign * node.running.get(slot, 0) * node.output_tokens
            self._decode[key] = self._decode.get(key, 0.0) + owed

    def _hand_over(self, lower: Node, upper: Node) -> None:
        for field in ("count", "prompt_tokens", "hit_tokens", "output_tokens"):
            setattr(upper, field, getattr(lower, field))
            setattr(lower, field, 0)
        upper.ttfts, lower.ttfts = lower.ttfts, {}
        del self._booked[lower]
        self._booked[upper] = None
        self._window = deque(
            (at, upper if node is lower else node, tokens, known) for at, node, tokens, known in self._window
        )
        self._put(upper, 1.0, _prefill_share_s(upper))


def _prefill_share_s(node: Node, tokens: int | None = None, before: int | None = None) -> float:
    """Miss ratio * requests * prefill time, shared among the node's slots."""
    if not node.prompt_tokens or not node.allocated:
        return 0.0
    size = node.tokens if tokens is None else tokens
    context = (node.before if before is None else before) + size
    miss = 1.0 - node.hit_tokens / node.prompt_tokens
    return miss * node.count * prefill_s(size, context) / len(node.allocated)
