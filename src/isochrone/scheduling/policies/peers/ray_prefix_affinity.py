"""Ray Serve LLM's `PrefixCacheAffinityRouter`: whoever had the longest part of the prompt before.

    if at least 0.1 of the prompt is in the tree: of the replicas that have all of the longest match, the least R
    else: of the replicas with the least text in the tree, the least R            R: requests in flight; ties by chance

Load never breaks the affinity by default: the threshold of imbalance is infinite. The tree is never swept by default
(here all trees together are bounded by the index's limit of entries). Source: ray-project/ray, `llm/_internal/serve/
routing_policies/prefix_aware/prefix_aware_router.py` and `prefix_tree.py`.
"""

from typing import ClassVar

from isochrone.instances.table import Instance
from isochrone.kv.hashing import block_end
from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.policies.peers.ranks import in_flight, places
from isochrone.scheduling.policies.peers.routed import UNBOUNDED, RoutedText
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask

MATCH_RATIO = 0.1
NO_SWEEP_S = 1e9


class RayPrefixAffinity(Plain):
    """The rule above."""

    name: ClassVar[str] = "ray-prefix-affinity"
    summary: ClassVar[str] = "Ray Serve: whoever had the longest part of the prompt, else the smallest tree"
    term: ClassVar[str] = "place"
    listens: ClassVar[bool] = True

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._tree = RoutedText(UNBOUNDED, NO_SWEEP_S)

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        depth, mask = self._tree.match(request.blocks)
        if depth and block_end(depth - 1) >= MATCH_RATIO * request.hashed_bytes:
            candidates = [bool(mask >> slot & 1) for slot in pool.slots]
        else:
            sizes = [self._tree.used_bytes(slot) for slot in pool.slots]
            candidates = [size == min(sizes) for size in sizes]
        loads = in_flight(pool)
        return places(
            [(not is_one, load, self._chance.random()) for is_one, load in zip(candidates, loads, strict=True)]
        )

    def chosen(self, ask: Ask, request: Request, pool: Pool, position: int, now: Instant) -> None:
        self._tree.insert(pool.slots[position], request.blocks, now)

    def gone(self, instance: Instance) -> None:
        self._tree.remove(instance.slot)
