"""The relay's side of a stream that can change its instance: what each attempt is sent, and the memory that it takes.

    first attempt      the client's request, with token ids asked for
    lost, and the cluster says Dispatch(continues)
    [prompt ids not kept]   POST /tokenize, the client's body
    next attempt       POST /v1/completions, prompt ids and output ids

The bytes are the business of `access/splice.py`.
"""

from typing import TYPE_CHECKING

from isochrone.access.contract import Contract
from isochrone.access.inject import with_token_ids
from isochrone.access.splice import Splice
from isochrone.access.sse import StreamMeter
from isochrone.nouns.events import Outcome

if TYPE_CHECKING:
    from isochrone.gateway.exchange import Exchange

TOKENIZE = b"/tokenize"
COMPLETIONS = b"/v1/completions"
CONTINUABLE = frozenset({
    Outcome.LOST, Outcome.TIMED_OUT, Outcome.ABORTED, Outcome.FAILED, Outcome.BUSY, Outcome.UNREACHABLE,
})  # fmt: skip
"""How an attempt may have ended for another one to go on."""


class Kept:
    """Memory that all streams together keep so that they can be resumed: one number, looked at as they progress."""

    def __init__(self, bytes_max: int, stream_bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.stream_bytes_max = stream_bytes_max
        self.held_bytes = 0
        self.resumed = 0
        """Continuations begun."""
        self.forgotten = 0
        """Streams that had to give up being resumable, for memory."""

    def why_not(self, stream_bytes: int) -> str:
        """Why a stream may not keep so much; empty where it may. `held_bytes` counts it already."""
        if stream_bytes > self.stream_bytes_max:
            return f"it is longer than resume_stream_bytes_max = {self.stream_bytes_max}"
        return f"resume_bytes_max = {self.bytes_max} is full" if self.held_bytes > self.bytes_max else ""


class Resuming:
    """What an exchange keeps of a stream that its contract allows to resume."""

    __slots__ = ("_context_tokens", "_kept", "contract", "counted_bytes", "ids_asked", "splice")

    def __init__(self, contract: Contract, kept: Kept) -> None:
        self.contract = contract
        self.ids_asked = False
        """The attempt in flight was asked for token ids."""
        self.splice: Splice | None = None
        """From the first head of a stream with token ids on."""
        self.counted_bytes = 0
        """What `Kept` has counted for this stream."""
        self._kept = kept
        self._context_tokens: int | None = None

    def continuation(self, exchange: "Exchange", context_tokens: int | None) -> tuple[bytes, bytes]:
        """Path and body of an attempt that continues the answer."""
        assert self.splice is not None
        self.splice.turn()
        self._kept.resumed += 1
        self._context_tokens = context_tokens
        return self.rest() if not self.splice.needs_body else (TOKENIZE, exchange.body)

    def beginning(self, exchange: "Exchange") -> tuple[bytes, bytes]:
        """Path and body of an attempt that begins the answer."""
        pool = exchange.gateway.pools.get(exchange.instance)
        self.ids_asked = pool is not None and pool.gives_ids
        return exchange.inbound.target, with_token_ids(exchange.body) if self.ids_asked else exchange.body

    def new_meter(self, cut_usage: bool) -> StreamMeter:
        """For the events of an answer that begins."""
        if not self.ids_asked:
            return StreamMeter(cut_usage)
        self.splice = Splice(self.contract, cut_usage)
        return self.splice

    @property
    def needs_body(self) -> bool:
        """The client's body must be kept: the prompt's ids are not."""
        return self.splice is not None and self.splice.needs_body

    def rest(self) -> tuple[bytes, bytes]:
        """Path and body of the request for the rest, once the prompt's ids are known. No body: there is no room for it
        on the instance."""
        assert self.splice is not None
        room = self.splice.room(self._context_tokens)
        return COMPLETIONS, self.splice.body(room) if room > 0 else b""

    def refusal(self) -> str:
        """Why the stream cannot be continued; empty where it can."""
        return "the instance gives no token ids" if self.splice is None else self.splice.refusal()

    def account(self, exchange: "Exchange") -> None:
        """Count what is kept, and keep nothing more where that is too much."""
        splice, kept = self.splice, self._kept
        if splice is None:
            return
        self._count(splice.kept_bytes)
        if not splice.why_not and (why := kept.why_not(self.counted_bytes)):
            kept.forgotten += 1
            splice.give_up(why)
            self._count(splice.kept_bytes)
        if not self.needs_body:
            exchange.release_body()

    def release(self) -> None:
        """The exchange is over."""
        self._count(0)

    def _count(self, size: int) -> None:
        self._kept.held_bytes += size - self.counted_bytes
        self.counted_bytes = size
