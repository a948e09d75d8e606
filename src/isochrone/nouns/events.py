"""What crosses the door inwards: edges, never tokens.

A driver (gateway, simulator) turns what happens on its sockets, or in its heap, into these and hands each to
`Cluster.handle(now, event)`. An attempt is named by one integer that the cluster gave out in its Dispatch: relay, epoch
and number packed by `attempt_id`. Late news of an attempt or incarnation that the cluster no longer knows is ignored.
"""

import enum

import msgspec

from isochrone.nouns.instance import InstanceSpec, ModelCard, Snapshot
from isochrone.nouns.instant import Instant
from isochrone.nouns.request import Request, Usage
from isochrone.nouns.settings import Settings


def attempt_id(relay: int, epoch: int, number: int) -> int:
    """One integer for (relay, epoch, number): 12, 12 and 40 bits."""
    return (relay << 52) | (epoch << 40) | number


class Outcome(enum.StrEnum):
    """How an attempt ended, as the relay saw it."""

    DONE = "done"
    """Answered to the end."""
    REJECTED = "rejected"
    """The engine answered 4xx: the client's mistake, never retried, never the instance's fault."""
    BUSY = "busy"
    """The engine answered 429 or 503: full, not broken."""
    FAILED = "failed"
    """The engine answered another 5xx, or something that is not HTTP."""
    UNREACHABLE = "unreachable"
    """Connect refused or timed out; nothing was sent."""
    LOST = "lost"
    """The connection ended or was reset before the answer was whole."""
    TIMED_OUT = "timed_out"
    """A limit of the relay (first token, gap, whole) ran out."""
    CLIENT_LEFT = "client_left"
    """The client closed; the upstream was aborted."""
    ABORTED = "aborted"
    """The cluster said so: the instance is removed, drains for too long, or hangs, or another attempt was first."""


class Arrived(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A whole request was read and is well-formed."""

    request: Request
    relay: int = 0
    epoch: int = 0


class Adopted(msgspec.Struct, frozen=True, gc=False, kw_only=True, tag=True):
    """A relay has this attempt under way since before this cluster began: the process that decides was started anew.

    What comes of it is told as of any other attempt.
    """

    request: Request
    attempt: int
    """As the former cluster numbered it."""
    instance: str
    ordinal: int
    relay: int
    epoch: int
    arrived_at: Instant
    dispatched_at: Instant
    first_token_at: Instant | None = None
    output_tokens: int = 0
    """Of this attempt, so far."""
    said_tokens: int | None = None
    """Not None: it continues an answer of which the client has so many tokens from attempts before it."""


class Accepted(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A response head below 400 came: the engine took the attempt. Not needed where the end follows at once."""

    attempt: int


class FirstToken(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The first event that carries output came. Streams only: an answer that comes whole just ends."""

    attempt: int


class Progress(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Output tokens of a stream so far, counted by the relay; at most every 32 tokens or 500 ms."""

    attempt: int
    output_tokens: int


class Stalled(msgspec.Struct, frozen=True, gc=False, tag=True):
    """No token for long; informs, ends nothing."""

    attempt: int
    since: Instant


class Ended(msgspec.Struct, frozen=True, gc=False, tag=True):
    """An attempt is over, however it ended. Exactly one for each Dispatch.

    `delivered`: bytes of an answer have already gone to the client, so that it cannot be begun anew elsewhere.
    `resumable`: ... but the relay can continue it on another instance.
    `output_tokens`: what the relay counted, where usage is missing; of the whole answer, whichever attempts it is from.
    """

    attempt: int
    outcome: Outcome
    delivered: bool = False
    status: int = 0
    usage: Usage | None = None
    output_tokens: int = 0
    retry_after_s: int | None = None
    why: str = ""
    resumable: bool = False


class ClientLeft(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The client closed its connection while its request was waiting or running."""

    request: str


class Observed(msgspec.Struct, frozen=True, gc=False, tag=True):
    """One good scrape. `taken_at`: when the engine answered; dispatches after it are not in it."""

    instance: str
    snapshot: Snapshot
    taken_at: Instant
    incarnation: int = 0


class ModelsSeen(msgspec.Struct, frozen=True, gc=False, tag=True):
    """One good reading of `/v1/models`."""

    instance: str
    models: tuple[ModelCard, ...]


class Verdict(enum.StrEnum):
    """Answer to one heartbeat."""

    OK = "ok"
    REFUSED = "refused"
    """Connect refused, or an answer that is not 2xx."""
    TIMEOUT = "timeout"


class Probed(msgspec.Struct, frozen=True, gc=False, tag=True):
    """One heartbeat came back, or did not."""

    instance: str
    verdict: Verdict


class Found(msgspec.Struct, frozen=True, gc=False, tag=True):
    """An instance joins (or comes back with a new spec)."""

    spec: InstanceSpec


class Withdrawn(msgspec.Struct, frozen=True, gc=False, tag=True):
    """An instance leaves. `drain`: let running attempts finish; else they are aborted and tried elsewhere."""

    instance: str
    drain: bool = True
    keep: bool = False
    """Draining only: stay listed as draining instead of going away when the last attempt ends."""


class Weighed(msgspec.Struct, frozen=True, gc=False, tag=True):
    """An operator set an instance's weight (0: cordon)."""

    instance: str
    weight: float


class Configured(msgspec.Struct, frozen=True, gc=False, tag=True):
    """New settings; take effect from the next decision on."""

    settings: Settings


class Woke(msgspec.Struct, frozen=True, gc=False, tag=True):
    """`next_deadline()` has passed."""


Event = (
    Arrived | Adopted | Accepted | FirstToken | Progress | Stalled | Ended | ClientLeft | Observed | ModelsSeen | Probed
    | Found | Withdrawn | Weighed | Configured | Woke
)  # fmt: skip
