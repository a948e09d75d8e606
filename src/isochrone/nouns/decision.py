"""The record of one choice: candidates, terms in seconds, winner, forecast, outcome."""

import msgspec

from isochrone.nouns.instant import Instant


class Candidate(msgspec.Struct, gc=False):
    """One instance as the policy saw it. `terms` are seconds and sum to `price_s`."""

    instance: str
    price_s: float
    terms: dict[str, float]
    hit_tokens: int = 0
    open: bool = True
    """False: it had no room at that moment (slot, KV, pending prefill)."""
    forecast_ttft_s: float | None = None
    forecast_e2e_s: float | None = None


class Try(msgspec.Struct, gc=False):
    """One dispatch and how it ended."""

    instance: str
    dispatched_at: Instant
    ended_at: Instant | None = None
    outcome: str = ""
    status: int = 0
    why: str = ""
    attempt: int = 0
    """Its number: the last 16 hexadecimal digits of the id that the engine was sent."""


class Decision(msgspec.Struct, gc=False, kw_only=True):
    """Everything about one request from arrival to end; never a word of its prompt."""

    request: str
    model: str
    path: str
    tenant: str
    key: str = ""
    """Public id of the API key."""
    route: str
    stream: bool
    policy: str
    arrived_at: Instant
    prompt_tokens_estimate: int
    max_tokens: int | None = None
    output_tokens_estimate: float | None = None
    winner: str | None = None
    price_s: float | None = None
    forecast_ttft_s: float | None = None
    """From dispatch, unweighted; queue_wait_s comes on top for a forecast from arrival."""
    forecast_e2e_s: float | None = None
    shadow_policy: str | None = None
    shadow_winner: str | None = None
    queue_wait_s: float = 0.0
    tries: list[Try] = []
    first_token_at: Instant | None = None
    ended_at: Instant | None = None
    outcome: str = ""
    """`done`, `refused`, `failed`, `rejected`, `client_left`, ..."""
    reason: str = ""
    """Error code of a refusal or failure."""
    status: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    evidence: object = None
    """What the policy priced, kept cheap; `scheduling.explain.candidates(decision)` turns it into Candidates."""
