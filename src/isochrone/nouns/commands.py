"""What crosses the door outwards: what the driver has to do."""

import msgspec

from isochrone.nouns.decision import Decision
from isochrone.nouns.errors import ApiError


class Limits(msgspec.Struct, frozen=True, gc=False):
    """Deadlines of bytes: the relay owns them. Seconds; None: no limit."""

    connect_s: float = 5.0
    first_token_s: float | None = 600.0
    gap_s: float | None = 120.0
    whole_s: float | None = 3600.0
    deadline_s: float | None = None
    """What is left, at dispatch, of the limit that the client has set."""


class Dispatch(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Send the request to the instance. The relay answers with Ended(attempt), sooner or later, exactly once."""

    request: str
    attempt: int
    instance: str
    limits: Limits
    ordinal: int = 1
    """1 for the first attempt of the request."""
    continues: bool = False
    """The client has the beginning of the answer: generate only what is missing."""
    context_tokens: int | None = None
    """Longest context of the instance; None where it is not known."""
    model: str = ""
    """The fallback model that the request is for now; empty: the one that it came for."""
    hedge: bool = False
    """Beside an attempt that runs: the first of the two to give a byte is the answer, and the other is ended."""


class Refuse(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The request was never dispatched, and will not be: answer with the error."""

    request: str
    error: ApiError


class Fail(msgspec.Struct, frozen=True, gc=False, tag=True):
    """No further attempt. `error` None: pass on what the last engine answered, if anything; with bytes already
    delivered the relay ends the stream in a way that no client takes for a whole answer."""

    request: str
    error: ApiError | None = None


class Abort(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Close the attempt's upstream connection at once; the relay answers Ended(ABORTED)."""

    attempt: int
    why: str = ""
    if_movable: bool = False
    """Only where the answer can go on, or begin anew, on another instance; else let it run."""


class Record(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A request has ended; its decision holds the whole story. For the access log and the decision log."""

    decision: Decision


Command = Dispatch | Refuse | Fail | Abort | Record
