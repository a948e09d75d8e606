"""What a relay keeps in mind of a request until the brain has been told its end."""

from msgspec.structs import replace

from isochrone.nouns.commands import Dispatch
from isochrone.nouns.events import Adopted, Arrived, Ended
from isochrone.nouns.instant import Instant, seconds
from isochrone.nouns.request import Request


class Attempt:
    """One dispatch of a request, and how far it is."""

    __slots__ = ("command", "dispatched_at", "ended", "first_token_at", "output_tokens", "said_tokens")

    def __init__(self, command: Dispatch, now: Instant, said_tokens: int | None) -> None:
        self.command = command
        self.dispatched_at = now
        self.said_tokens = said_tokens
        self.first_token_at: Instant | None = None
        self.output_tokens = 0
        self.ended: Ended | None = None
        """How it ended; None while it runs."""


class Open:
    """One request that the brain has not been told the end of."""

    __slots__ = ("arrived_at", "attempt", "request", "rival", "waits_since")

    def __init__(self, request: Request, now: Instant) -> None:
        self.request = request
        self.arrived_at = self.waits_since = now
        self.attempt: Attempt | None = None
        """The latest; of two that run, the one that was first."""
        self.rival: Attempt | None = None
        """The second of two that run."""

    @property
    def waits(self) -> bool:
        """Nothing runs: what is next, the brain has to say."""
        return self.attempt is None or self.attempt.ended is not None

    def sent(self, command: Dispatch, now: Instant, said_tokens: int | None) -> None:
        """A new attempt begins: beside the one that runs, if one does."""
        attempt = Attempt(command, now, said_tokens)
        if self.waits:
            self.attempt = attempt
        else:
            self.rival = attempt

    def find(self, number: int) -> Attempt | None:
        """The attempt of that number, if it is the latest or runs."""
        for attempt in (self.attempt, self.rival):
            if attempt is not None and attempt.command.attempt == number:
                return attempt
        return None

    def ended(self, event: Ended, now: Instant) -> None:
        """An attempt is over. Of two, the other one goes on as if it had been alone."""
        attempt = self.find(event.attempt)
        assert attempt is not None
        attempt.ended = event
        if self.rival is None:
            self.waits_since = now
        else:
            self.attempt = self.rival if attempt is self.attempt else self.attempt
            self.rival = None

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
        attempt = self.attempt
        assert attempt is not None
        command, request = attempt.command, self.request
        if command.model:  # a fallback model is asked by now
            request = replace(request, model=command.model)
        return Adopted(
            request=request, attempt=command.attempt, instance=command.instance, ordinal=command.ordinal, relay=relay,
            epoch=epoch, arrived_at=self.arrived_at, dispatched_at=attempt.dispatched_at,
            first_token_at=attempt.first_token_at, output_tokens=attempt.output_tokens, said_tokens=attempt.said_tokens,
        )  # fmt: skip
