"""What a relay keeps in mind of a request until the brain has been told its end."""

from msgspec.structs import replace

from isochrone.nouns.commands import Dispatch
from isochrone.nouns.events import Adopted, Arrived, Ended
from isochrone.nouns.instant import Instant, seconds
from isochrone.nouns.request import Request


class Open:
    """One request that the brain has not been told the end of."""

    __slots__ = ("arrived_at", "dispatch", "dispatched_at", "ended", "first_token_at", "output_tokens", "request",
                 "said_tokens", "waits_since")  # fmt: skip

    def __init__(self, request: Request, now: Instant) -> None:
        self.request = request
        self.arrived_at = self.waits_since = now
        self.dispatch: Dispatch | None = None
        """The latest."""
        self.dispatched_at: Instant = 0
        self.first_token_at: Instant | None = None
        self.output_tokens = 0
        self.said_tokens: int | None = None
        self.ended: Ended | None = None
        """How the latest attempt ended; None while it runs."""

    def sent(self, command: Dispatch, now: Instant, said_tokens: int | None) -> None:
        """A new attempt begins."""
        self.dispatch, self.dispatched_at, self.ended = command, now, None
        self.first_token_at, self.output_tokens, self.said_tokens = None, 0, said_tokens

    def arrived(self, relay: int, epoch: int, now: Instant) -> Arrived:
        """The request, for a brain that takes it to come now: of its own limit only the rest is left."""
        request = self.request
        if request.limit_s is not None:
            request = replace(request, limit_s=max(1e-3, request.limit_s - seconds(now - self.arrived_at)))
        return Arrived(request, relay, epoch)

    def waits_s_max(self, most: float) -> float:
        """How long it may wait for a brain: not longer than its client lets it."""
        return most if self.request.limit_s is None else min(most, self.request.limit_s)

    def adopted(self, relay: int, epoch: int) -> Adopted:
        """The latest attempt, for a brain that has not dispatched it."""
        assert self.dispatch is not None
        request = self.request
        if self.dispatch.model:  # a fallback model is asked by now
            request = replace(request, model=self.dispatch.model)
        return Adopted(
            request=request, attempt=self.dispatch.attempt, instance=self.dispatch.instance,
            ordinal=self.dispatch.ordinal, relay=relay, epoch=epoch, arrived_at=self.arrived_at,
            dispatched_at=self.dispatched_at, first_token_at=self.first_token_at, output_tokens=self.output_tokens,
            said_tokens=self.said_tokens,
        )  # fmt: skip
