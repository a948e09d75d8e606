"""The same instance for the same session, as long as it is there."""

from typing import ClassVar

import xxhash

from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask


class SessionHash(Plain):
    """Rendezvous hashing of (session, instance): adding an instance moves only the sessions that it wins, removing one
    moves only its own, and a restart moves none. Requests without a session go to the fewest requests."""

    name: ClassVar[str] = "session-hash"
    summary: ClassVar[str] = "one instance for each session (rendezvous hashing)"
    term: ClassVar[str] = "draw"

    def __init__(self, chance: Chance) -> None:
        pass

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        if not request.session:
            return [row.running * row.share for row in pool.rows]
        key = request.session.encode()
        return [xxhash.xxh3_64_intdigest(row.id.encode() + b"\0" + key) / 2.0**64 for row in pool.rows]
