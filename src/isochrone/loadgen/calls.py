"""What the client sends and what came back: plain data, times in seconds of `time.monotonic`.

That is the event loop's clock too; uvloop's own reading of it has steps of a millisecond and is not used here.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request, rendered before the clock runs."""

    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    route: str = "default"
    """Route class: also sent as `x-isochrone-route`, and the key of the objectives in the report."""
    stream: bool = True
    method: str = "POST"


@dataclass(slots=True)
class Result:
    """How one call went, as the client saw it. Instants are None where the thing did not happen."""

    route: str
    stream: bool
    intended_at: float
    """When the call should have been sent. All latencies count from here, so that a late client hides nothing."""
    sent_at: float | None = None
    first_byte_at: float | None = None
    first_token_at: float | None = None
    """First event with text in it; for an answer that is not streamed, the whole answer."""
    last_token_at: float | None = None
    ended_at: float | None = None
    status: int = 0
    error: str = ""
    """Empty: served whole. Else one of `connect`, `closed`, `truncated`, `timeout`, `http`, `stream`, `protocol`,
    `no_connection`, `cancelled`."""
    tokens: int = 0
    """Output tokens: from `usage`, else events with text."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    instance: str = ""
    """The `x-isochrone-instance` header."""

    @property
    def served(self) -> bool:
        """A 2xx answer that was whole."""
        return not self.error and 200 <= self.status < 300

    @property
    def ttft_s(self) -> float | None:
        """Intended send time to first token."""
        return None if self.first_token_at is None else self.first_token_at - self.intended_at

    @property
    def e2e_s(self) -> float | None:
        """Intended send time to the end of the answer."""
        return None if self.ended_at is None else self.ended_at - self.intended_at

    @property
    def tpot_s(self) -> float | None:
        """Mean gap between output tokens; None for one token or an answer that is not streamed."""
        if not self.stream or self.tokens < 2 or self.first_token_at is None or self.last_token_at is None:
            return None
        return (self.last_token_at - self.first_token_at) / (self.tokens - 1)
