"""Prompts in flight by instance, with the blocks that several of them share counted once."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import repeat

import numpy as np

from isochrone.nouns.request import Request
from isochrone.scheduling.policies.peers.routed import text_tokens
from isochrone.scheduling.price import Ask


class ActivePrompts:
    """What each request put in is taken out exactly when it ends. A chain's blocks are in use from its start on, so
    what a prompt shares with those in flight is found by bisection."""

    def __init__(self) -> None:
        self._users: dict[int, dict[int, tuple[int, int]]] = {}
        """Block -> by slot how many prompts use it there, and its tokens."""
        self._tokens: dict[int, int] = {}
        """Prompt tokens in flight by slot."""
        self._entered: dict[str, tuple[int, tuple[int, ...], int]] = {}
        """Request -> slot, blocks, and tokens of the rest of its prompt."""

    def tokens(self, slot: int) -> int:
        """Prompt tokens in flight on the slot, shared ones once."""
        return self._tokens.get(slot, 0)

    def tokens_of_many(self, slots: Sequence[int]) -> np.ndarray:
        """The same for each of the slots."""
        return np.fromiter(map(self._tokens.get, slots, repeat(0)), np.float64, len(slots))

    def shared(self, ask: Ask, request: Request, slot: int) -> int:
        """Tokens of the prompt that prompts in flight on the slot hold already."""
        users = self._users
        depth = bisect_left(request.blocks, True, key=lambda block: slot not in users.get(block, ()))
        return text_tokens(ask, request, depth)

    def shared_of_many(self, ask: Ask, request: Request, slots: Sequence[int]) -> np.ndarray | float:
        """The same for each of the slots: who uses a block uses those before it, so users only get fewer along the
        chain, and each depth where they do is found by bisection."""
        users, blocks = self._users, request.blocks
        shared: dict[int, int] = {}
        depth = 0
        while depth < len(blocks) and blocks[depth] in users:
            holders = users[blocks[depth]]
            depth = _end(users, blocks, depth + 1, len(holders))
            shared.update(dict.fromkeys(holders, text_tokens(ask, request, depth)))
        return np.fromiter(map(shared.get, slots, repeat(0)), np.float64, len(slots)) if shared else 0.0

    def enter(self, ask: Ask, request: Request, slot: int) -> None:
        """The request goes to the slot."""
        self.leave(request)
        end = added = 0
        for depth, block in enumerate(request.blocks, 1):
            start, end = end, text_tokens(ask, request, depth)
            here = self._users.setdefault(block, {})
            count, size = here.get(slot, (0, end - start))
            here[slot] = (count + 1, size)
            if not count:
                added += size
        rest = ask.prompt_tokens - end
        self._tokens[slot] = self.tokens(slot) + added + rest
        self._entered[request.id] = (slot, request.blocks, rest)

    def leave(self, request: Request) -> None:
        """The request is over, wherever it was; nothing if it never entered."""
        self._take_out(request.id)

    def remove(self, slot: int) -> None:
        """The slot is free for another instance."""
        for request in [request for request, entry in self._entered.items() if entry[0] == slot]:
            self._take_out(request)
        self._tokens.pop(slot, None)

    def _take_out(self, request_id: str) -> None:
        entry = self._entered.pop(request_id, None)
        if entry is None:
            return
        slot, blocks, gone = entry
        for block in blocks:
            here = self._users[block]
            count, size = here[slot]
            if count > 1:
                here[slot] = (count - 1, size)
                continue
            gone += size
            del here[slot]
            if not here:
                del self._users[block]
        self._tokens[slot] -= gone


def _end(users: dict[int, dict[int, tuple[int, int]]], blocks: Sequence[int], start: int, count: int) -> int:
    """The first depth from `start` on whose block has not `count` slots that use it."""
    return bisect_left(blocks, True, lo=start, key=lambda block: len(users.get(block, ())) != count)
