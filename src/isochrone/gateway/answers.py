"""An instance's answer on its way to the client: four ways to pass one on, chosen when its head arrives.

| way | for | first byte goes out |
|---|---|---|
| `HeldAnswer` | 429 and 5xx | only if no other instance answers |
| `WholeAnswer` | bodies of known, small length | when it is whole: one that breaks off can still be tried elsewhere |
| `EventAnswer` | streams of tokens (SSE) | with the first event; only whole events go out |
| `ByteAnswer` | all else: audio, compressed bodies, long ones | with the first byte of the body |

The head is kept back until there is a body byte to send with it: one write, and nothing is lost if the instance
fails in between. Each read of the upstream connection leads to at most one write here.
"""

from typing import TYPE_CHECKING

from isochrone.access import wire
from isochrone.access.answer import usage_of
from isochrone.access.sse import StreamMeter
from isochrone.gateway import clock, telling
from isochrone.gateway.headers import status_line
from isochrone.nouns.errors import ApiError
from isochrone.nouns.events import FirstToken, Progress
from isochrone.nouns.instant import MILLISECOND, SECOND, Instant

if TYPE_CHECKING:
    from isochrone.gateway.exchange import Exchange

PROGRESS_TOKENS = 32
PROGRESS_NS = 500 * MILLISECOND
"""A Progress event comes after so many tokens, or so long a time, whichever is first."""
USAGE_TAIL_BYTES = 8 * 1024
"""Of a long JSON answer, the end that is searched for its usage."""

END = b"0\r\n\r\n"
COMMENT = b":\n"
"""An SSE comment. Without a blank line: after an event with an id, some clients take that for one more, empty event."""


class Answer:
    """What all ways share: the head that waits, the framing towards the client, the state that the sweep reads."""

    __slots__ = ("chunked", "exchange", "head", "last_output_at", "output_tokens", "status")

    def __init__(self, exchange: "Exchange", status: int, lines: bytes, length: bytes | None) -> None:
        self.exchange = exchange
        self.status = status
        self.last_output_at: Instant = 0
        """When output last came; 0 before the first. Only read for the limits in time."""
        self.output_tokens = 0
        self.chunked = False
        client = exchange.client
        if length is not None:
            framing = b"content-length: %b\r\n" % length
        elif status in (204, 304):
            framing = b""
        elif exchange.inbound.http11:
            framing = b"transfer-encoding: chunked\r\n"
            self.chunked = True
        else:
            framing = b""
            client.keep = False
        connection = b"" if client.keep and exchange.inbound.http11 else client.connection_line(exchange.inbound)
        ours = telling.about(exchange) + exchange.inbound.reply_lines
        self.head: bytes | None = b"".join((status_line(status), lines, ours, framing, connection, b"\r\n"))

    def _joins(self, exchange: "Exchange", status: int, chunked: bool) -> None:
        """In place of `__init__`: the client has a head already."""
        self.exchange = exchange
        self.status = status
        self.last_output_at = 0
        self.output_tokens = 0
        self.chunked = chunked
        self.head = None

    def take(self, body: bytes, last: bool) -> None:
        """Body bytes of the instance, `last` with the end of the answer. Never called again after `last`."""
        raise NotImplementedError

    def keep_alive(self, now: Instant, after_s: float) -> None:
        """A stream that has been silent for so long shows that it is alive. Other answers cannot."""

    def break_off(self, error: ApiError) -> None:
        """The instance was lost after the first byte went out: make sure that no client takes the rest for a whole."""
        client = self.exchange.client
        client.keep = False
        if not self.chunked:  # a clean close would look like the end of a body that ends with its connection
            client.abort()

    def write(self, body: bytes, last: bool) -> None:
        """Send to the client, framed as its head says."""
        if self.chunked:
            if body:
                body = b"%x\r\n%b\r\n%b" % (len(body), body, END) if last else b"%x\r\n%b\r\n" % (len(body), body)
            elif last:
                body = END
        if self.head is not None:
            body = self.head + body
            self.head = None
            self.exchange.deliver(self)
        if body:
            self.exchange.client.write(body)


class HeldAnswer(Answer):
    """429 or 5xx, kept until the cluster has said whether another instance is asked."""

    __slots__ = ("_body", "_limit", "retry_after_s")

    def __init__(
        self, exchange: "Exchange", status: int, lines: bytes, length: bytes | None, retry_after: bytes | None
    ) -> None:
        super().__init__(exchange, status, lines, length)
        self.retry_after_s = int(retry_after) if retry_after is not None and retry_after[:6].isdigit() else None
        self._body: list[bytes] = []
        self._limit = exchange.gateway.limits.held_answer_bytes_max

    def take(self, body: bytes, last: bool) -> None:
        self._body.append(body)
        self._limit -= len(body)
        if self._limit < 0:
            self._body.clear()
            self.exchange.drop_upstream()
            self.exchange.turned_away(self, whole=False)
        elif last:
            self.exchange.turned_away(self, whole=True)

    def pass_on(self) -> None:
        """Nobody else answered: the client gets this."""
        self.write(b"".join(self._body), last=True)


class WholeAnswer(Answer):
    """A body of known length, small enough to be passed on in one write."""

    __slots__ = ("_body",)

    def __init__(self, exchange: "Exchange", status: int, lines: bytes, length: bytes) -> None:
        super().__init__(exchange, status, lines, length)
        self._body = b""

    def take(self, body: bytes, last: bool) -> None:
        self._body = body = self._body + body if self._body else body
        if not last:
            self.last_output_at = clock.now()
            return
        exchange = self.exchange
        self.write(body, last=True)
        usage = None
        if self.status < 400:
            usage = usage_of(body)
        exchange.done(self.status, usage, 0)


class ByteAnswer(Answer):
    """A body that is not read here, passed on as it comes."""

    __slots__ = ("_json", "_tail")

    def __init__(self, exchange: "Exchange", status: int, lines: bytes, length: bytes | None, json: bool) -> None:
        super().__init__(exchange, status, lines, length)
        self._json = json
        self._tail = b""

    def take(self, body: bytes, last: bool) -> None:
        self.last_output_at = clock.now()
        if self._json:
            self._tail = (self._tail + body)[-USAGE_TAIL_BYTES:]
        self.write(body, last)
        if last:
            exchange = self.exchange
            exchange.done(self.status, usage_of(self._tail) if self._json and self.status < 400 else None, 0)


class EventAnswer(Answer):
    """A stream of tokens: whole events, metered on the way."""

    __slots__ = ("_attempt", "_before", "_commented_at", "_meter", "_reported", "_reported_at")

    def __init__(self, exchange: "Exchange", status: int, lines: bytes) -> None:
        super().__init__(exchange, status, lines, None)
        self._begin(exchange.new_meter())

    def _begin(self, meter: StreamMeter) -> None:
        self._meter = meter
        self._before = self.output_tokens = meter.output_tokens
        """Tokens of attempts before this one."""
        self._attempt = self.exchange.attempt
        self._reported = 0
        self._reported_at: Instant = 0
        self._commented_at: Instant = 0

    def take(self, body: bytes, last: bool) -> None:
        meter = self._meter
        events = meter.feed(body)
        tokens = meter.output_tokens
        ends = last or meter.gave_out
        if events and not ends:  # before the news of it: what a stream goes on from is what the client has
            self.write(events, False)
        if tokens != self.output_tokens:
            self.output_tokens = tokens
            if not ends or not self._reported:
                self._progress(tokens - self._before)
            if self.exchange.attempt != self._attempt:  # the cluster has ended the attempt over this news
                return
        if meter.gave_out:
            self._broke(events)
        elif last:
            self._end(events)

    def _progress(self, tokens: int) -> None:
        """Tell the cluster now and then how far the answer is."""
        self.last_output_at = now = clock.now()
        if not self._reported:
            self._reported = tokens
            self._reported_at = now
            self.exchange.account()
            self.exchange.gateway.brain.submit(FirstToken(self._attempt))
        elif tokens - self._reported >= PROGRESS_TOKENS or now - self._reported_at >= PROGRESS_NS:
            self._reported = tokens
            self._reported_at = now
            self.exchange.account()
            self.exchange.gateway.brain.submit(Progress(self._attempt, tokens))

    def keep_alive(self, now: Instant, after_s: float) -> None:
        """Between whole events only, as nothing else is ever written."""
        if now - max(self.last_output_at, self._commented_at, self.exchange.dispatched_at) >= after_s * SECOND:
            self._commented_at = now
            self.write(COMMENT, False)

    def _broke(self, events: bytes) -> None:
        """The instance said that it cannot go on, in a stream that may go on elsewhere."""
        if events:
            self.write(events, False)
        self.exchange.drop_upstream()
        self.exchange.garbled("the instance reported an error in the stream")

    def _end(self, events: bytes) -> None:
        """The instance ended the body in good order; whether the answer is whole, its last events tell."""
        meter = self._meter
        events += meter.rest()
        if meter.failed:  # the instance has told the client itself
            self.write(events, True)
            self.exchange.failed_midway(self.status, self.output_tokens)
        elif meter.whole:
            self.write(events, True)
            self.exchange.done(self.status, meter.usage, meter.output_tokens)
        else:
            if events:
                self.write(events, False)
            self.exchange.lost("the stream ended without its last event", self.status)

    def break_off(self, error: ApiError) -> None:
        told = self._meter.error_event
        self.write(told or wire.stream_event(error, self.exchange.route.anthropic), last=True)
        self.exchange.client.keep = False


def choose(exchange: "Exchange", status: int, lines: bytes, read: dict[bytes, bytes]) -> Answer:
    """The way for an answer with this head."""
    length = read.get(b"content-length")
    if status == 429 or status >= 500:
        return HeldAnswer(exchange, status, lines, length, read.get(b"retry-after"))
    media = read.get(b"content-type", b"")
    plain = b"content-encoding" not in read
    if status < 400 and plain and exchange.request.generates and media.startswith(b"text/event-stream"):
        return EventAnswer(exchange, status, lines)
    if length is not None and int(length) <= exchange.gateway.limits.whole_answer_bytes_max:
        return WholeAnswer(exchange, status, lines, length)
    return ByteAnswer(exchange, status, lines, length, plain and media.startswith(b"application/json"))
