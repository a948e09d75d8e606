"""smg's (and the SGLang router's) `cache_aware`: the prompt's home, unless the fleet is out of balance.

    out of balance if  max R - min R > 32  and  max R > 1.1 * min R       R: requests that this gateway has in flight
    if out of balance: the least (R, requests ever sent, position)
    else, if more than half of the prompt is in the tree: the one instance that the tree names for it
    else: the least (R, requests ever sent, position)

Source: lightseekorg/smg 73da68ca, `policies/cache_aware.rs` (`is_imbalanced`, `select_worker_with_text`) and `mod.rs`
(defaults). Its two KV triggers are off by default (thresholds of 1.0 are never exceeded) and left out. The tree is
swept every 30 s down to 10,000 characters an instance: the option is called a number of nodes, the code counts
characters. That is the library's default and keeps hardly one long prompt; the Python launcher's own defaults are the
second policy here.

Where the tree names an instance that is gone, the first instance is taken, as there.
"""

from typing import ClassVar, NamedTuple

from isochrone.instances.table import Instance
from isochrone.kv.hashing import block_end
from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.policies.peers.ranks import in_flight, places
from isochrone.scheduling.policies.peers.routed import RoutedText
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask


class Options(NamedTuple):
    """The peer's options."""

    match_ratio: float
    balance_abs: int
    """Requests."""
    balance_rel: float
    sweep_s: float
    tree_bytes: int
    """Text kept for one instance after a sweep."""

    def imbalanced(self, loads: list[int]) -> bool:
        """Whether affinity is off, for the whole fleet."""
        least, most = min(loads), max(loads)
        return most - least > self.balance_abs and most > least * self.balance_rel


class SmgCacheAware(Plain):
    """With the defaults of the library."""

    name: ClassVar[str] = "smg-cache-aware"
    summary: ClassVar[str] = "smg: the prompt's home by a prefix tree, shortest queue while out of balance"
    term: ClassVar[str] = "place"
    listens: ClassVar[bool] = True
    options: ClassVar[Options] = Options(0.5, 32, 1.1, 30.0, 10_000)

    def __init__(self, chance: Chance) -> None:
        self._tree = RoutedText(self.options.tree_bytes, self.options.sweep_s)
        self._sent: dict[int, int] = {}
        """Requests ever sent, by slot."""

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        loads = in_flight(pool)
        shortest = [(load, self._sent.get(slot, 0)) for load, slot in zip(loads, pool.slots, strict=True)]
        if self.options.imbalanced(loads):
            return places(shortest)
        return places(shortest, home(self._tree, self.options.match_ratio, request, pool))

    def chosen(self, ask: Ask, request: Request, pool: Pool, position: int, now: Instant) -> None:
        slot = pool.slots[position]
        self._sent[slot] = self._sent.get(slot, 0) + 1
        self._tree.insert(slot, request.blocks, now)

    def gone(self, instance: Instance) -> None:
        self._tree.remove(instance.slot)
        self._sent.pop(instance.slot, None)


class SmgCacheAwareLauncher(SmgCacheAware):
    """With the defaults of the Python launcher (`bindings/python/src/smg/router_args.py`)."""

    name: ClassVar[str] = "smg-cache-aware-launcher"
    summary: ClassVar[str] = "the same with the Python launcher's thresholds and tree size"
    options: ClassVar[Options] = Options(0.3, 64, 1.5, 60.0, 1 << 26)


def home(tree: RoutedText, match_ratio: float, request: Request, pool: Pool) -> int | None:
    """Position of the prompt's home; None where too little of the prompt is known anywhere."""
    depth, _ = tree.match(request.blocks)
    if not depth or block_end(depth - 1) <= match_ratio * request.hashed_bytes:
        return None
    slot = tree.owner(request.blocks)
    return pool.slots.index(slot) if slot in pool.slots else 0
