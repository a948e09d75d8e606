"""Prompts in flight by instance, with the blocks that several of them share counted once."""

from bisect import bisect_left

from isochrone.nouns.request import Request
from isochrone.scheduling.policies.peers.routed import text_tokens
from isochrone.scheduling.price import Ask


class _Slot:
    """One instance: each block in use with its users and its tokens, and tokens in all."""

    __slots__ = ("tokens", "users")

    def __init__(self) -> None:
        self.users: dict[int, tuple[int, int]] = {}
        self.tokens = 0


class ActivePrompts:
    """What each request put in is taken out exactly when it ends. A chain's blocks are in use from its start on, so
    what a prompt shares with those in flight is found by bisection."""

    def __init__(self) -> None:
        self._slots: dict[int, _Slot] = {}
        self._entered: dict[str, tuple[int, tuple[int, ...], int]] = {}
        """Request -> slot, blocks, and tokens of the rest of its prompt."""

    def tokens(self, slot: int) -> int:
        """Prompt tokens in flight on the slot, shared ones once."""
        held = self._slots.get(slot)
        return held.tokens if held else 0

    def shared(self, ask: Ask, request: Request, slot: int) -> int:
        """Tokens of the prompt that prompts in flight on the slot hold already."""
        held = self._slots.get(slot)
        if held is None or not request.blocks:
            return 0
        users = held.users
        depth = bisect_left(request.blocks, True, key=lambda block: block not in users)
        return text_tokens(ask, request, depth)

    def enter(self, ask: Ask, request: Request, slot: int) -> None:
        """The request goes to the slot."""
        self.leave(request)
        held = self._slots.setdefault(slot, _Slot())
        end = 0
        for depth, block in enumerate(request.blocks, 1):
            start, end = end, text_tokens(ask, request, depth)
            count, size = held.users.get(block, (0, end - start))
            held.users[block] = (count + 1, size)
            if not count:
                held.tokens += size
        held.tokens += ask.prompt_tokens - end
        self._entered[request.id] = (slot, request.blocks, ask.prompt_tokens - end)

    def leave(self, request: Request) -> None:
        """The request is over, wherever it was; nothing if it never entered."""
        slot, blocks, rest = self._entered.pop(request.id, (-1, (), 0))
        held = self._slots.get(slot)
        if held is None:
            return
        for block in blocks:
            count, size = held.users[block]
            if count > 1:
                held.users[block] = (count - 1, size)
            else:
                del held.users[block]
                held.tokens -= size
        held.tokens -= rest

    def remove(self, slot: int) -> None:
        """The slot is free for another instance."""
        self._slots.pop(slot, None)
        self._entered = {request: entry for request, entry in self._entered.items() if entry[0] != slot}
