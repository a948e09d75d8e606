"""smg's `prefix_hash`: a hash of the first 256 tokens on a ring of instances, left where that one is too busy.

    too busy if  R > 1.25 * (sum of R + 1) / instances      R: requests that this gateway has in flight
    then: the least R of those that are not, the first of equals; if all are, the ring's choice all the same

The ring has 150 points for each instance. Source: lightseekorg/smg 73da68ca, `policies/prefix_hash.rs` and
`worker/hash_ring.rs`. Without a tokenizer 256 tokens are the first 1,024 bytes of text (or 256 token ids); a prompt
shorter than one block of 512 bytes has no hash here and goes to the least R.
"""

from bisect import bisect_left
from typing import ClassVar

import xxhash

from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.policies.peers.ranks import in_flight, places
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask

PREFIX_BLOCKS = 2
"""Blocks that stand for 256 tokens."""
LOAD_FACTOR = 1.25
POINTS = 150
"""Points of one instance on the ring."""


class SmgPrefixHash(Plain):
    """The rule above."""

    name: ClassVar[str] = "smg-prefix-hash"
    summary: ClassVar[str] = "smg: hash of the first 256 tokens on a ring with bounded load"
    term: ClassVar[str] = "place"

    def __init__(self, chance: Chance) -> None:
        self._rings: dict[str, tuple[tuple[str, ...], list[tuple[int, int]]]] = {}
        """Model -> members' ids, and the ring of (point, position) made for them: a memory, not a state."""

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        loads = in_flight(pool)
        if not request.blocks:
            return places(loads)
        home = self._home(pool, request.blocks[min(PREFIX_BLOCKS, len(request.blocks)) - 1])
        limit = LOAD_FACTOR * (sum(loads) + 1) / len(loads)
        if loads[home] <= limit or min(loads) > limit:
            return places(loads, home)
        return places(loads)

    def _home(self, pool: Pool, prefix: int) -> int:
        """The owner of the first point at or after the prefix's."""
        members = tuple(instance.id for instance in pool.members)
        known = self._rings.get(pool.model)
        if known is None or known[0] != members:
            known = self._rings[pool.model] = (members, _ring(members))
        ring = known[1]
        point = xxhash.xxh3_64_intdigest(prefix.to_bytes(8, "big"))
        return ring[bisect_left(ring, (point, 0)) % len(ring)][1]


def _ring(members: tuple[str, ...]) -> list[tuple[int, int]]:
    return sorted(
        (xxhash.xxh3_64_intdigest(f"{member}#{number}".encode()), position)
        for position, member in enumerate(members)
        for number in range(POINTS)
    )
