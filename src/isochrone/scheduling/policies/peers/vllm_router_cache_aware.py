"""vllm-project/router's `cache_aware`: a fork of the SGLang router's, with sessions beside the tree.

    out of balance if  max R - min R > 32  and  max R > 1.1 * min R       R: requests that this gateway has in flight
    if out of balance: the least R, the first of equals
    else, if a chat names its session: the instance that had the session last
    else, if more than half of the prompt is in the tree: the one instance that the tree names for it
    else: the least R, the first of equals

Source: vllm-project/router 16917f49, `policies/cache_aware.rs`; defaults from its documentation (0.5 / 32 / 1.1, a
sweep every 30 s down to 10,000: nodes by its name, characters in the code). An older version sent what the tree did not
know to the smallest tree and not to the shortest queue, which fed one instance for ever (sglang issue 14532).
Sessions are forgotten after an hour, or as the oldest of more than 10,000 (there with the sweep, here at once).
"""

from collections import OrderedDict
from typing import ClassVar

from isochrone.instances.table import Instance
from isochrone.nouns.chance import Chance
from isochrone.nouns.instant import SECOND, Instant
from isochrone.nouns.request import Request
from isochrone.scheduling.policies.base import Plain, Priced
from isochrone.scheduling.policies.peers.ranks import in_flight, places
from isochrone.scheduling.policies.peers.routed import RoutedText
from isochrone.scheduling.policies.peers.smg_cache_aware import Options, home
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask

SESSION_NS = 3600 * SECOND
SESSIONS_MAX = 10_000
"""Sessions that the copy of vllm-router's policy remembers; the oldest goes."""


class VllmRouterCacheAware(Plain):
    """The rule above."""

    name: ClassVar[str] = "vllm-router-cache-aware"
    summary: ClassVar[str] = "vllm-router: session or prompt's home by a prefix tree, shortest queue out of balance"
    term: ClassVar[str] = "place"
    listens: ClassVar[bool] = True
    options: ClassVar[Options] = Options(0.5, 32, 1.1, 30.0, 10_000)

    def __init__(self, chance: Chance) -> None:
        self._tree = RoutedText(self.options.tree_bytes, self.options.sweep_s)
        self._sessions: OrderedDict[str, tuple[int, Instant]] = OrderedDict()
        """Session -> slot and when it was last used; oldest first."""

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        loads = in_flight(pool)
        if self.options.imbalanced(loads):
            return places(loads)
        slot, used_at = self._sessions.get(_session(request), (-1, 0))
        if slot in pool.slots and now - used_at <= SESSION_NS:
            return places(loads, pool.slots.index(slot))
        return places(loads, home(self._tree, self.options.match_ratio, request, pool))

    def chosen(self, ask: Ask, request: Request, pool: Pool, position: int, now: Instant) -> None:
        slot, session = pool.slots[position], _session(request)
        self._tree.insert(slot, request.blocks, now)
        if session:
            self._sessions[session] = (slot, now)
            self._sessions.move_to_end(session)
            if len(self._sessions) > SESSIONS_MAX:
                self._sessions.popitem(last=False)

    def gone(self, instance: Instance) -> None:
        self._tree.remove(instance.slot)
        for session in [session for session, (slot, _) in self._sessions.items() if slot == instance.slot]:
            del self._sessions[session]


def _session(request: Request) -> str:
    """Only chats are looked up by session; other prompts go by their text."""
    return request.session if request.path.endswith("/chat/completions") else ""
