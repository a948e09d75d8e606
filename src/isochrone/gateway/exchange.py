"""One request of a client, from its arrival to its end.

The exchange is what the cluster's commands act upon (`dispatch`, `fail`, `abort`) and where the news of sockets comes
together (`head_arrived`, `lost`, `client_left`, ...). For every Dispatch it submits exactly one Ended, however the
attempt ends; `_ended` is the only place that does. The bytes of an answer are the business of `answers.py`.
"""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from isochrone.access.aliases import renamed
from isochrone.access.contract import Contract, Promise, contract_of
from isochrone.access.scan import scan
from isochrone.access.sse import StreamMeter
from isochrone.gateway import answers, continued, headers, rivals, telling
from isochrone.gateway.resuming import CONTINUABLE, Resuming
from isochrone.nouns.commands import Abort, Dispatch, Limits
from isochrone.nouns.errors import ApiError
from isochrone.nouns.events import Accepted, ClientLeft, Ended, Outcome
from isochrone.nouns.instant import SECOND, Instant
from isochrone.nouns.request import Request, Usage

if TYPE_CHECKING:
    from isochrone.access.paths import Route
    from isochrone.gateway.app import Gateway
    from isochrone.gateway.inbound import Inbound
    from isochrone.gateway.pool import Connecting
    from isochrone.gateway.server import ClientConnection
    from isochrone.gateway.upstream import Upstream

NO_ATTEMPT = -1
NO_LIMITS = Limits()
FINAL_LIMITS = ("whole_s", "deadline_s")
"""Limits after which no other instance goes on with the answer."""


class Exchange:
    """The relay's side of one request. At most one attempt is in flight at a time; where a second instance is asked
    beside the first (`rivals.py`), that is a second exchange."""

    __slots__ = (
        "answer", "answered", "attempt", "body", "client", "contract", "cut_usage", "delivered", "delivering",
        "dispatched_at", "ended_as", "fallback", "gateway", "gone", "held", "inbound", "instance", "limits", "ordinal",
        "outgoing", "parting", "request", "resuming", "rival", "route", "target", "upstream", "why",
    )  # fmt: skip

    def __init__(
        self,
        gateway: "Gateway",
        client: "ClientConnection",
        inbound: "Inbound",
        route: "Route",
        request: Request,
        body: bytes,
        cut_usage: bool,
        contract: Contract | None = None,
    ) -> None:
        self.gateway = gateway
        self.client = client
        self.inbound = inbound
        self.route = route
        self.request = request
        self.body = body
        """The client's bytes, with a spliced field where `cut_usage`. Kept for another attempt until the first byte of
        an answer is delivered, or for longer where resuming needs it."""
        self.target = inbound.target
        self.outgoing = body
        """Path and body that the instance is sent."""
        self.contract = contract
        """Of streams, where resuming is on."""
        self.resuming: Resuming | None = None
        if contract is not None and contract.promise is not Promise.REFUSED:
            self.resuming = Resuming(contract, gateway.kept)
        self.cut_usage = cut_usage
        """We asked for usage on the client's behalf: its event is cut out of the stream again."""
        self.attempt = NO_ATTEMPT
        self.ordinal = 0
        self.instance = ""
        self.limits = NO_LIMITS
        self.dispatched_at: Instant = 0
        self.upstream: Upstream | Connecting | None = None
        self.answer: answers.Answer | None = None
        self.held: answers.HeldAnswer | None = None
        """The last instance's 429 or 5xx, passed on if nobody else answers."""
        self.delivered = False
        """Bytes of an answer have gone to the client."""
        self.delivering: answers.Answer | None = None
        """The answer whose head the client has."""
        self.answered = False
        """An answer was passed on to its end."""
        self.parting: ApiError | None = None
        """What to tell the client if we give the request up ourselves."""
        self.ended_as = Outcome.DONE
        self.fallback = request.model if request.meant_for else ""
        """The fallback model that is asked, if one is."""
        self.why = ""
        """How the last attempt ended, for the error that the client sees."""
        self.gone = False
        """The client has left."""
        self.rival: Exchange | None = None
        """The same request at a second instance. One of the two is the client's, and is known to the brain."""

    # What the cluster commands.

    def dispatch(self, command: Dispatch) -> None:
        """Send the request to an instance."""
        if command.hedge and (self.delivered or self.attempt != NO_ATTEMPT):  # else the first one has failed meanwhile
            rivals.ask_another(self, command)
            return
        assert self.attempt == NO_ATTEMPT
        assert self.delivered == command.continues
        self.attempt = command.attempt
        self.ordinal = command.ordinal
        self.instance = command.instance
        self.limits = command.limits
        self.dispatched_at = self.gateway.brain.now
        self.answer = None
        self.held = None
        if command.model and command.model != self.request.model:
            self._turn_to(command.model)
        resuming = self.resuming
        if resuming is None:
            self._send()
        elif command.continues:
            self._send_rest(resuming.continuation(self, command.context_tokens))
        else:
            self.target, self.outgoing = resuming.beginning(self)
            self._send()

    def twin(self) -> "Exchange":
        """The same request, for a second attempt beside the first."""
        twin = Exchange(
            self.gateway, self.client, self.inbound, self.route, self.request, self.body, self.cut_usage, self.contract
        )
        twin.fallback = self.fallback
        return twin

    def end(self, outcome: Outcome, why: str) -> None:
        """The attempt is over, if there is one."""
        self._ended(outcome, why=why)

    def _turn_to(self, model: str) -> None:
        """Ask a fallback model from now on."""
        media = self.inbound.read.get(b"content-type", b"")
        form = media[:10].lower() == b"multipart/"
        self.body = self.outgoing = renamed(self.body, self.request.model, model, form)
        self.request = replace(self.request, model=model)
        self.fallback = model
        if self.resuming is not None:
            self.contract = contract_of(self.route, scan(self.route, self.body, media))
            self.resuming = Resuming(self.contract, self.gateway.kept)

    def _send(self) -> None:
        pool = self.gateway.pools.get(self.instance)
        if pool is None:
            self.unreachable("the instance has left")
        else:
            pool.send(self)

    def ask_for_rest(self) -> None:
        """The prompt's ids are known: ask the same instance for the rest of the answer."""
        assert self.resuming is not None
        self.answer = None
        self._send_rest(self.resuming.rest())

    def _send_rest(self, request: tuple[bytes, bytes]) -> None:
        self.target, self.outgoing = request
        if self.outgoing:
            self._send()
        else:
            self.not_continued(400, "no room in the instance's context, or its length is not known")

    def fail(self, error: ApiError | None) -> None:
        """No attempt will answer: end the request with the error, or with what the last instance said."""
        self.drop_upstream()
        if self.gone or self.answered:
            pass
        elif self.delivered:
            assert self.delivering is not None
            self.delivering.break_off(error or telling.cut_short(self))
        elif error is None and self.held is not None:
            self.held.pass_on()
        else:
            error = error or telling.nobody_answered(self)
            self.client.refuse(self.inbound, error, self.route.anthropic, telling.about(self))
        self.over()

    def abort(self, command: Abort) -> None:
        """Close the attempt's connection at once. Unless the client has left, the cluster says what is next."""
        if self.attempt == NO_ATTEMPT or (command.if_movable and self.delivered and not self.can_continue()):
            return
        self.drop_upstream()
        tokens = 0 if self.answer is None else self.answer.output_tokens
        self._ended(Outcome.CLIENT_LEFT if self.gone else Outcome.ABORTED, output_tokens=tokens, why=command.why)

    def recorded(self) -> None:
        """The request is over for the cluster. If nobody answered (the gateway stops), the client hears of it now."""
        if self.ordinal and not self.answered:
            self.fail(self.parting)

    # What the upstream side reports.

    def head_arrived(self, status: int, lines: bytes, read: dict[bytes, bytes], complete: bool) -> bool:
        """A response head came, `complete` with its whole body. True: the body ends with the connection."""
        if status < 400 and not complete:  # news that the very next event makes old is not worth its 2 us
            self.gateway.brain.submit(Accepted(self.attempt))
        self.answer = (continued if self.delivered else answers).choose(self, status, lines, read)
        if complete or b"content-length" in read or status in (204, 304):
            return False
        return b"transfer-encoding" not in read

    def done(self, status: int, usage: Usage | None, output_tokens: int) -> None:
        """The answer was passed on to its end."""
        self.answered = True
        outcome = Outcome.DONE if status < 400 else Outcome.REJECTED
        self._ended(outcome, status=status, usage=usage, output_tokens=output_tokens)
        self.over()

    def failed_midway(self, status: int, output_tokens: int) -> None:
        """The instance ended its stream with an error event, which the client has."""
        self.answered = True
        self._ended(Outcome.FAILED, status=status, output_tokens=output_tokens, why="the stream ended with an error")
        self.over()

    def unreachable(self, why: str) -> None:
        """No connection; nothing was sent."""
        self._ended(Outcome.UNREACHABLE, why=why)

    def crowded(self, why: str) -> None:
        """No room for one more connection to the instance."""
        self._ended(Outcome.BUSY, why=why)

    def lost(self, why: str, status: int = 0) -> None:
        """The connection ended before the answer was whole."""
        if not self._completed():
            self._ended(Outcome.LOST, status=status, output_tokens=self._tokens(), why=why)

    def garbled(self, why: str) -> None:
        """What came was not HTTP."""
        if not self._completed():
            self._ended(Outcome.FAILED, output_tokens=self._tokens(), why=why)

    def not_continued(self, status: int, why: str) -> None:
        """The instance did not take a continuation. A 4xx ends the request: others would say the same."""
        outcome = Outcome.REJECTED if 400 <= status < 500 else Outcome.FAILED
        self._ended(outcome, status=status, output_tokens=self._tokens(), why=why)

    def turned_away(self, held: "answers.HeldAnswer", whole: bool) -> None:
        """The instance answered 429 or 5xx. `whole`: the answer can be passed on as it is."""
        self.held = held if whole else None
        busy = held.status in (429, 503)
        self._ended(
            Outcome.BUSY if busy else Outcome.FAILED,
            status=held.status,
            retry_after_s=held.retry_after_s,
            why=f"status {held.status}",
        )

    # What the client side reports.

    def client_left(self) -> None:
        """The client closed its connection."""
        both = (self,) if self.rival is None else (self, self.rival)
        for one in both:
            one.gone = True
        self.gateway.brain.submit(ClientLeft(self.request.id))
        for one in both:
            one.abort(Abort(one.attempt, "the client left"))  # where the cluster has not said so already
        for one in both:
            one.over()
            one.rival = None
            if one.resuming is not None:
                one.resuming.release()

    def client_full(self) -> None:
        """The client takes its answer too slowly: let the instance wait."""
        if self.upstream is not None:
            self.upstream.pause()

    def client_ready(self) -> None:
        if self.upstream is not None:
            self.upstream.resume()

    # What time brings.

    def sweep(self, now: Instant) -> None:
        """Check the limits of what is in flight; called every `sweep_s`."""
        rival = self.rival
        self._check_limits(now)
        if rival is not None:
            rival._check_limits(now)

    def _check_limits(self, now: Instant) -> None:
        if self.attempt == NO_ATTEMPT:
            return
        limits = self.limits
        waited_s = (now - self.dispatched_at) / SECOND
        if limits.deadline_s is not None and waited_s > limits.deadline_s:
            self._timed_out("deadline_s")
            return
        if self.client.full_since:
            return
        after_s = self.gateway.limits.keep_alive_s
        if after_s is not None and self.answer is not None:
            self.answer.keep_alive(now, after_s)
        if limits.whole_s is not None and waited_s > limits.whole_s:
            self._timed_out("whole_s")
            return
        last = 0 if self.answer is None else self.answer.last_output_at
        if last:
            if limits.gap_s is not None and now - last > limits.gap_s * SECOND:
                self._timed_out("gap_s")
        elif self.request.stream and limits.first_token_s is not None and waited_s > limits.first_token_s:
            self._timed_out("first_token_s")

    def _timed_out(self, limit: str) -> None:
        """`limit`: the field of `Limits` that ran out; the cluster names it, with its value, to the client."""
        self.drop_upstream()
        if not self._completed():
            self._ended(Outcome.TIMED_OUT, output_tokens=self._tokens(), why=limit)

    def give_up(self, error: ApiError) -> None:
        """The gateway stops: end the request now, with an error that the client can see."""
        self.parting = error
        if self.rival is not None:
            rivals.leave_behind(self, Outcome.CLIENT_LEFT, "the gateway stops")
        if self.attempt != NO_ATTEMPT:
            self.drop_upstream()
            self._ended(Outcome.CLIENT_LEFT, why="the gateway stops")  # for the cluster: no other attempt
        else:
            self.gateway.brain.submit(ClientLeft(self.request.id))
        if self.gateway.brain.requests.get(self.request.id) is self:
            self.fail(error)

    # Parts.

    def grant(self, lines: bytes) -> None:
        """What the tenant has left, for the answer's head. Comes before the first dispatch."""
        self.inbound.reply_lines += lines

    def said_tokens(self) -> int:
        """Output tokens that the client has."""
        return self._tokens()

    def drop_upstream(self) -> None:
        """Close the connection to the instance, if there is one."""
        if self.upstream is not None:
            self.upstream.abort()
            self.upstream = None

    def request_head(self, base: bytes, host_line: bytes, credentials: bytes) -> bytes:
        """The head that the instance is sent: its own path prefix, name and credentials around the client's lines.

        The id is ours, of fixed length, and of this attempt alone: engines abort by id, some by the beginning of one,
        so an id that a client chose could stop the requests of others.
        """
        inbound = self.inbound
        if not credentials and self.gateway.passes_credentials:
            credentials = headers.credential_lines(inbound.read)
        return b"".join((
            b"POST ", base, self.target, host_line, inbound.lines, credentials,
            b"content-length: %d\r\nx-request-id: %b%016x\r\n\r\n"
            % (len(self.outgoing), self.gateway.id_prefix, self.attempt),
        ))  # fmt: skip

    def deliver(self, answer: "answers.Answer") -> None:
        """The first byte of an answer goes out: it is not begun anew, so the body is no longer needed."""
        if self.rival is not None:
            rivals.win(self)
        self.delivered = True
        self.delivering = answer
        self.outgoing = b""
        if self.resuming is None or not self.resuming.needs_body:
            self.release_body()

    def release_body(self) -> None:
        """The client's body is not needed any more. May be called again."""
        self.gateway.bodies.release(self.inbound)
        self.body = b""

    # What a stream that may be resumed needs.

    def new_meter(self) -> StreamMeter:
        """For the events of an answer that begins."""
        return StreamMeter(self.cut_usage) if self.resuming is None else self.resuming.new_meter(self.cut_usage)

    def account(self) -> None:
        """Some more tokens have come: count what is kept."""
        if self.resuming is not None:
            self.resuming.account(self)

    def can_continue(self) -> bool:
        """Another instance can be asked for the rest of the answer."""
        return self.resuming is not None and not self.resuming.refusal()

    def _completed(self) -> bool:
        """All tokens are out and only the stream's last words are lost: say them ourselves."""
        splice = self.resuming.splice if self.resuming is not None and self.delivered else None
        rest = splice.ending() if splice is not None else None
        if splice is None or rest is None:
            return False
        assert self.delivering is not None
        self.delivering.write(rest, last=True)
        self.done(self.delivering.status, splice.usage, splice.output_tokens)
        return True

    def _tokens(self) -> int:
        """Output tokens so far, of all attempts that continue each other."""
        if self.resuming is not None and self.resuming.splice is not None:
            return self.resuming.splice.output_tokens
        return 0 if self.answer is None else self.answer.output_tokens

    def over(self) -> None:
        """The request has ended: forget it and let the client's connection go on."""
        if self.gateway.brain.requests.get(self.request.id) is not self:
            return
        del self.gateway.brain.requests[self.request.id]
        self.gateway.bodies.release(self.inbound)
        if self.resuming is not None:
            self.resuming.release()
        self.answer = self.held = self.delivering = None
        self.client.exchange_over()

    def _ended(
        self,
        outcome: Outcome,
        status: int = 0,
        usage: Usage | None = None,
        output_tokens: int = 0,
        retry_after_s: int | None = None,
        why: str = "",
    ) -> None:
        attempt = self.attempt
        if attempt == NO_ATTEMPT:
            return
        self.attempt = NO_ATTEMPT
        self.upstream = None
        self.ended_as, self.why = outcome, why
        if self.rival is not None and not self.gone:  # this attempt gave nothing; the other one may
            rivals.give_way(self)
        resumable = self.delivered and outcome in CONTINUABLE and why not in FINAL_LIMITS and self.can_continue()
        self.gateway.brain.submit(
            Ended(attempt, outcome, self.delivered, status, usage, output_tokens, retry_after_s, why, resumable)
        )
