"""The record of one choice: candidates, terms in seconds, winner, forecast, outcome."""

import msgspec

from isochrone.nouns.instant import Instant


class Candidate(msgspec.Struct, gc=False):
    """One instance as the policy saw it. `terms` are seconds and sum to `price_s`."""

    instance: str
    """Its id."""
    price_s: float
    """What the policy compared: seconds for ours, whatever its formula gives for a peer's."""
    terms: dict[str, float]
    """The parts of the price."""
    hit_tokens: int = 0
    """Prompt tokens that it was taken to have cached."""
    open: bool = True
    """False: it had no room at that moment (slot, KV, pending prefill)."""
    forecast_ttft_s: float | None = None
    """From dispatch to the first token there, as we expected it."""
    forecast_e2e_s: float | None = None
    """From dispatch to the last token."""


class Try(msgspec.Struct, gc=False):
    """One dispatch and how it ended."""

    instance: str
    """Where it went."""
    dispatched_at: Instant
    """When it was sent."""
    ended_at: Instant | None = None
    """When it was over; None while it runs."""
    outcome: str = ""
    """`done`, `rejected`, `busy`, `failed`, `unreachable`, `lost`, `timed_out`, `client_left`, `aborted`."""
    status: int = 0
    """HTTP status of the engine's answer; 0: none."""
    why: str = ""
    """More about it, in words."""
    attempt: int = 0
    """Its number: the last 16 hexadecimal digits of the id that the engine was sent."""


class Decision(msgspec.Struct, gc=False, kw_only=True):
    """Everything about one request from arrival to end; never a word of its prompt."""

    request: str
    """The request's id."""
    model: str
    """Its name; that of the only one where the client named none."""
    path: str
    """Route template."""
    tenant: str
    """On whose behalf it came."""
    key: str = ""
    """Public id of the API key."""
    route: str
    """Route class."""
    stream: bool
    """Whether it is a stream."""
    policy: str
    """Who chose."""
    arrived_at: Instant
    """When it was whole at the gateway."""
    prompt_tokens_estimate: int
    """Prompt tokens, as estimated at arrival."""
    fallback_from: str = ""
    """Model that it was meant for, where a fallback model has taken it over; `model` is the latter."""
    max_tokens: int | None = None
    """The client's bound on output tokens."""
    output_tokens_estimate: float | None = None
    """Output tokens expected at arrival; None: it generates none."""
    winner: str | None = None
    """Instance of the last dispatch; None: there was none."""
    price_s: float | None = None
    """The winner's price."""
    forecast_ttft_s: float | None = None
    """From dispatch, unweighted; queue_wait_s comes on top for a forecast from arrival."""
    forecast_e2e_s: float | None = None
    """The same to the last token."""
    shadow_policy: str | None = None
    """The shadow, where there is one."""
    shadow_winner: str | None = None
    """Where the shadow would have sent it."""
    queue_wait_s: float = 0.0
    """From arrival to the first dispatch."""
    tries: list[Try] = []
    """Every dispatch, in order."""
    first_token_at: Instant | None = None
    """When the first output came."""
    ended_at: Instant | None = None
    """When it was over; None while it runs or waits."""
    outcome: str = ""
    """`done`, `refused`, `failed`, `rejected`, `client_left`, ..."""
    reason: str = ""
    """Error code of a refusal or failure."""
    status: int = 0
    """HTTP status of the answer."""
    prompt_tokens: int | None = None
    """As the engine counted."""
    output_tokens: int | None = None
    """As the engine counted, else as the relay did."""
    cached_tokens: int | None = None
    """Prompt tokens that the engine's prefix cache held."""
    evidence: object = None
    """What the policy priced, kept cheap; `cluster.evidence.candidates(decision)` turns it into Candidates."""
