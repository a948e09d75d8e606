"""Preble's E2: exploit the cache where most of a prompt is known, explore the least load where it is not.

    new tokens < known tokens: the least load among the instances that the known part was sent to
    else: the least load of all

    load of an instance = sum over the last large nodes of the requests of 3 minutes that belong to it:
        miss ratio * requests * prefill time(tokens, context) / instances of the node
        + requests in flight * output tokens * median TPOT of the instance's last 200 (0.15 s before the first)

After the choice, from 50 requests an instance on: while the highest load is at least 1.5 times the lowest (nodes of two
requests and more), the cheapest nodes move from the one to the other as long as that does not turn them round; a node
that is alone is copied there instead if its TTFT has doubled within the window.

Source: WukLab/preble 8e7906a3, `global_scheduler_with_time.py`, `ttft_overload_detector.py`, `model_equations.py` (the
prefill time of Mistral 7B on an A6000, which that scheduler uses as it stands), `global_lru_cache.py`. Eviction is off
there by default and left out. Output tokens are the client's `max_tokens`, else 45, as there.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median
from typing import ClassVar

from isochrone.instances.table import Instance
from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant, seconds
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.policies.peers.preble_load import Loads
from isochrone.scheduling.policies.peers.preble_tree import Node, Tree
from isochrone.scheduling.policies.peers.ranks import places
from isochrone.scheduling.policies.peers.routed import matched_tokens
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask

OUTPUT_TOKENS = 45
TPOT_S = 0.15
TPOT_SAMPLES = 200
IMBALANCE = 1.5
REBALANCE_FROM = 50
"""Requests an instance before anything is moved."""
CHAIN_NODES = 3
"""Nodes from the request's last large node to its leaf, beyond which it moves nothing."""


class _Sent:
    """One request in flight."""

    __slots__ = ("at", "first_token_at", "leaf", "slot")

    def __init__(self, slot: int, leaf: Node, at: Instant) -> None:
        self.slot, self.leaf, self.at = slot, leaf, at
        self.first_token_at: Instant | None = None


class Preble(Plain):
    """The rule above."""

    name: ClassVar[str] = "preble"
    summary: ClassVar[str] = "Preble E2: least load among holders of most of the prompt, else least load"
    term: ClassVar[str] = "place"
    listens: ClassVar[bool] = True

    def __init__(self, chance: Chance) -> None:
        self._tree = Tree()
        self._loads = Loads()
        self._sent: dict[str, _Sent] = {}
        self._tpots: dict[int, deque[float]] = {}
        self._ever = 0
        """Requests ever sent."""

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        node, depth, _ = self._tree.find(request.blocks)
        known = matched_tokens(ask, request, depth)
        holders: set[int] = set()
        if ask.prompt_tokens - known < known:
            holders = next((passed.allocated for passed in node.path() if passed.allocated), set())
        loads = self._of(pool.slots)
        return places([(slot not in holders, load) for slot, load in zip(pool.slots, loads, strict=True)])

    def chosen(self, ask: Ask, request: Request, pool: Pool, position: int, now: Instant) -> None:
        slot, self._ever = pool.slots[position], self._ever + 1
        self._leave(request)
        leaf = self._enter(ask, request)
        important = leaf.important()
        self._loads.expire(now)
        for node in leaf.path():
            with self._loads.changing(node):
                node.allocated.add(slot)
                node.running[slot] = node.running.get(slot, 0) + 1
        output = request.max_tokens if request.max_tokens is not None else OUTPUT_TOKENS
        self._loads.book(important, leaf, ask.prompt_tokens, output, now)
        self._sent[request.id] = _Sent(slot, leaf, now)
        chain = sum(1 for _ in leaf.path()) - sum(1 for _ in important.path())
        if chain < CHAIN_NODES and self._ever >= REBALANCE_FROM * len(pool.slots):
            self._rebalance(pool.slots, now)

    def first_token(self, request: Request, instance: Instance, now: Instant) -> None:
        sent = self._sent.get(request.id)
        if sent is not None and sent.slot == instance.slot:
            sent.first_token_at = now
            times = sent.leaf.important().ttfts.setdefault(sent.slot, deque(maxlen=TPOT_SAMPLES))
            times.append((now, seconds(now - sent.at)))

    def ended(self, request: Request, instance: Instance, output_tokens: int, now: Instant) -> None:
        sent = self._leave(request)
        if sent is not None and sent.first_token_at is not None and output_tokens > 1:
            tpots = self._tpots.setdefault(sent.slot, deque(maxlen=TPOT_SAMPLES))
            tpots.append(seconds(now - sent.first_token_at) / (output_tokens - 1))

    def gone(self, instance: Instance) -> None:
        slot = instance.slot
        self._tpots.pop(slot, None)
        for request in [request for request, sent in self._sent.items() if sent.slot == slot]:
            del self._sent[request]
        for node in {*self._tree.nodes(), *self._loads.nodes()}:
            with self._loads.changing(node):
                node.allocated.discard(slot)
                node.running.pop(slot, None)
                node.ttfts.pop(slot, None)
        self._loads.remove(slot)

    def _enter(self, ask: Ask, request: Request) -> Node:
        ends = [matched_tokens(ask, request, depth) for depth in range(1, len(request.blocks) + 1)]
        leaf, cut = self._tree.insert(request.blocks, ends, ask.prompt_tokens)
        if cut is not None:
            self._loads.was_cut(cut)
        return leaf

    def _leave(self, request: Request) -> _Sent | None:
        sent = self._sent.pop(request.id, None)
        if sent is not None:
            for node in sent.leaf.path():
                with self._loads.changing(node):
                    left = node.running.get(sent.slot, 0) - 1
                    if left > 0:
                        node.running[sent.slot] = left
                    else:
                        node.running.pop(sent.slot, None)
        return sent

    def _tpot_s(self, slot: int) -> float:
        samples = self._tpots.get(slot)
        return median(samples) if samples else TPOT_S

    def _of(self, slots: Iterable[int], at_least: int = 1) -> list[float]:
        return [self._loads.of(slot, self._tpot_s(slot), at_least) for slot in slots]

    def _rebalance(self, slots: Sequence[int], now: Instant) -> None:
        """From the most to the least loaded, then on among the rest."""
        loads = sorted(zip(self._of(slots, at_least=2), slots, strict=True), reverse=True)
        while len(loads) > 1 and loads[0][0] >= IMBALANCE * loads[-1][0] and loads[0][0] > 0.0:
            (most, rich), (least, poor) = loads[0], loads[-1]
            most, least = self._move(rich, poor, most, least, now)
            loads[-1] = (least, poor)
            loads = loads[1:]

    def _move(self, rich: int, poor: int, most: float, least: float, now: Instant) -> tuple[float, float]:
        """Move or copy nodes; returns the two loads afterwards, as the peer reckons them."""
        tpot_s = self._tpot_s(rich)
        movable = sorted(
            ((self._loads.cost(node, rich, tpot_s), node) for node in self._loads.booked(rich) if node.large), key=_cost
        )
        if len(movable) == 1:
            cost, node = movable[0]
            if poor not in node.allocated and node.overloaded(rich, now):
                with self._loads.changing(node):
                    node.allocated.add(poor)
                node.ttfts.pop(rich, None)
                return most - cost / 2, least + cost / 2
            return most, least
        for cost, node in movable:
            if most - cost < least + cost or most < IMBALANCE * least:
                break
            most, least = most - cost, least + cost
            self._give(node, poor)
        return most, least

    def _give(self, node: Node, slot: int) -> None:
        """The node and all below it belong to the slot from now on."""
        stack = [node]
        while stack:
            taken = stack.pop()
            with self._loads.changing(taken):
                taken.allocated = {slot}
            stack.extend(taken.children.values())


def _cost(movable: tuple[float, Node]) -> float:
    return movable[0]
