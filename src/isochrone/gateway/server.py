"""One client connection: HTTP/1.1 as a server, one answer at a time, in the order of the requests.

The parser's callbacks only take notes; a request is served once its body is whole, after the parser has seen all bytes
of the read. While a request is being answered nothing is parsed: what comes meanwhile waits as bytes, and above a
limit the connection is not read from.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import httptools

from isochrone.access import wire
from isochrone.gateway import clock, headers
from isochrone.gateway.brain import INTERNAL_ERROR
from isochrone.gateway.headers import status_line
from isochrone.gateway.inbound import NOTHING_READ, Inbound, Phase
from isochrone.gateway.samehead import SameHead
from isochrone.nouns.errors import ApiError
from isochrone.nouns.instant import Instant

if TYPE_CHECKING:
    from isochrone.gateway.app import Gateway
    from isochrone.gateway.exchange import Exchange

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Refused(Exception):
    """Raised inside the parser to stop it: the request was found wanting before it was whole."""


class ClientConnection(asyncio.Protocol):
    """Reads requests, keeps their order, writes answers."""

    __slots__ = (
        "_add_header", "_deaf", "_ended", "_head", "_held", "_inbound", "_parser", "_phase", "_pumping", "_read_bytes",
        "_ready", "_since", "exchange", "full_since", "gateway", "keep", "transport",
    )  # fmt: skip

    def __init__(self, gateway: "Gateway") -> None:
        self.gateway = gateway
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        """The request that is being answered, if an instance answers it."""
        self.keep = True
        """The connection stays open after the answer under way."""
        self.full_since: Instant = 0
        """Since when the client has not taken what was written; 0: it keeps up."""
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._add_header: Callable[[tuple[bytes, bytes]], None]
        self._head: SameHead[Inbound] = SameHead()
        self._inbound: Inbound | None = None
        """The request that is being read."""
        self._ready: deque[Inbound] = deque()
        """Requests that are whole and wait for the answer before theirs: at most `pipelined_max`."""
        self._held = b""
        """Bytes that came while a request was being answered: at most `head_bytes_max` and one read more."""
        self._read_bytes = 0
        """Bytes of the head so far, and what came in one read with its end."""
        self._phase = Phase.IDLE
        self._since: Instant = 0
        self._deaf = False
        """Nothing more is parsed: the connection closes after the answers that are due."""
        self._ended = False
        """The client has closed its sending side and waits for what is due."""
        self._pumping = False

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit
        self._since = clock.now()
        self.transport.set_write_buffer_limits(high=self.gateway.limits.client_buffer_bytes_max)
        self.gateway.admit(self)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self.exchange is None and not self._held:
            if not self._take_known(data):
                self._parse(data)
            self._pump()
            return
        self._held += data
        if len(self._held) > self.gateway.limits.head_bytes_max and self.transport is not None:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        """The client sends no more. Whether it still listens cannot be told from leaving, which it mostly means.

        True keeps the connection open for what we still have to say (`half_close`; TLS has no such thing).
        """
        transport = self.transport
        due = self.exchange is not None or self._ready or self._held
        if not (self.gateway.half_close and due) or transport is None or transport.get_extra_info("sslcontext"):
            self._leave()
            return False
        self._ended = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        # The parser holds our callbacks and we hold the parser: let go, or only the garbage collector ends the ring.
        self._parser = None
        self.transport = None
        self.gateway.connections.discard(self)
        self.gateway.turned_away.pop(self, None)

    def pause_writing(self) -> None:
        self.full_since = clock.now()
        if self.exchange is not None:
            self.exchange.client_full()

    def resume_writing(self) -> None:
        self.full_since = 0
        if self.exchange is not None:
            self.exchange.client_ready()
        else:
            self._pump()

    # What the parser calls.

    def on_message_begin(self) -> None:
        if len(self._ready) >= self.gateway.limits.pipelined_max:
            raise Refused  # what was read ahead is answered, then the connection closes; the client asks again
        self._inbound = inbound = Inbound()
        self._add_header = inbound.head.append

    def on_url(self, url: bytes) -> None:
        assert self._inbound is not None
        self._inbound.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers come here too, after the head was sorted out, and so go nowhere.
        self._add_header((name, value))

    def on_headers_complete(self) -> None:
        inbound, parser = self._inbound, self._parser
        assert inbound is not None
        assert parser is not None
        inbound.method = parser.get_method()
        inbound.http11 = parser.get_http_version() == "1.1"
        inbound.lines, read = headers.sort_out(headers.REQUEST, inbound.head)
        inbound.read = read
        named = read.get(b"connection")
        if named is not None and b"," in named:
            inbound.lines, _ = headers.sort_out(headers.REQUEST, headers.without(inbound.head, named))
        inbound.error = self.gateway.reception.check(inbound, self._read_bytes)
        if inbound.error is not None:
            raise Refused
        if b"expect" in read and self.exchange is None and not self._ready and not parser.should_upgrade():
            self.write(CONTINUE)

    def on_body(self, data: bytes) -> None:
        inbound = self._inbound
        assert inbound is not None
        if inbound.inflater is not None:
            unpacked = inbound.inflater.feed(data)
            if isinstance(unpacked, ApiError):
                inbound.error = unpacked
                raise Refused
            data = unpacked
        inbound.body.append(data)
        inbound.error = self.gateway.reception.take(inbound, len(data))
        if inbound.error is not None:
            raise Refused

    def on_message_complete(self) -> None:
        inbound, parser = self._inbound, self._parser
        assert inbound is not None
        assert parser is not None
        inbound.keep = parser.should_keep_alive()
        inbound.whole = True
        if inbound.inflater is not None:
            inbound.error = inbound.inflater.end()
        self._ready.append(inbound)
        self._inbound = None
        self._read_bytes = 0

    # Reading.

    def _take_known(self, data: bytes) -> bool:
        """Take in a whole request whose head came before. False: it has to be parsed."""
        last = self._head.parsed
        if last is None or self._inbound is not None or self._ready:
            return False
        body = self._head.body_of(data)
        if body is None:
            return False
        inbound = last.again(body)
        reception = self.gateway.reception
        if reception.check(inbound, len(data)) is not None:
            return False
        if reception.take(inbound, len(body)) is not None:
            self.gateway.bodies.release(inbound)
            return False
        self._ready.append(inbound)
        return True

    def _get_to_know(self, data: bytes, inbound: Inbound) -> None:
        """`data` was one whole request."""
        read = inbound.read
        length = read.get(b"content-length")
        if length is not None and inbound.inflater is None and b"expect" not in read and self._head.is_news():
            self._head.learn(data, int(length), inbound.again(b""))

    def _parse(self, data: bytes) -> None:
        parser = self._parser
        assert parser is not None
        between = self._inbound is None and not self._ready
        self._read_bytes += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._without_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            self._stop_parsing(error)
            return
        inbound = self._inbound
        if inbound is None:
            self._read_bytes = 0
            if between and len(self._ready) == 1:
                self._get_to_know(data, self._ready[0])
        elif inbound.read is not NOTHING_READ:
            self._enter(Phase.BODY)
        elif self._read_bytes > self.gateway.limits.head_bytes_max:
            inbound.error = wire.head_too_large("head_bytes_max", self.gateway.limits.head_bytes_max)
            self._stop_parsing(None)
        else:
            self._enter(Phase.HEAD)

    def _enter(self, phase: Phase) -> None:
        if self._phase != phase:
            self._phase = phase
            self._since = clock.now()

    def _stop_parsing(self, error: Exception | None) -> None:
        """The parser cannot go on: the request it is in is answered with an error, in its turn, and is the last."""
        self._deaf = True
        inbound, self._inbound = self._inbound, None
        if inbound is None:
            if self._ready and isinstance(error, httptools.HttpParserCallbackError):
                # More requests at once than are read ahead. The last one read is the last one answered.
                self._ready[-1].keep = False
                return
            inbound = Inbound()
        if inbound.error is None:
            inbound.error = wire.bad_request("malformed_http", f"The request is not well-formed HTTP/1.1: {error}.")
        self._ready.append(inbound)

    def _without_upgrade(self, rest: bytes) -> None:
        """Serve a request that offers an upgrade (h2c, say) as if it did not: RFC 9110 section 7.8 lets us."""
        inbound = self._ready.pop()
        if inbound.method == b"CONNECT":
            inbound.error = wire.method_not_allowed(b"CONNECT", "this gateway", "POST")
            self._ready.append(inbound)
            self._deaf = True
            return
        self._parser = httptools.HttpRequestParser(self)
        self._parse(inbound.head_without_upgrade() + rest)

    # Answering.

    def _pump(self) -> None:
        """Serve what is ready, one after the other, as far as it goes without waiting."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self.exchange is None and self._is_open() and not self.full_since:
                if self._ready:
                    inbound = self._ready.popleft()
                    self.keep = inbound.keep and not self.gateway.draining
                    self._serve(inbound)
                elif self._held and not self._deaf:
                    data, self._held = self._held, b""
                    self._listen()
                    self._parse(data)
                else:
                    break
        finally:
            self._pumping = False

    def _serve(self, inbound: Inbound) -> None:
        try:
            self.gateway.reception.serve(self, inbound)
        except Exception:
            self.gateway.brain.fault("serving a request failed")
            if self.exchange is not None:
                self.exchange.fail(INTERNAL_ERROR)
            else:
                self.refuse(inbound, INTERNAL_ERROR, False, b"")

    def write(self, data: bytes) -> None:
        """Send. A closed transport refuses even between its end and our hearing of it, so ask first."""
        transport = self.transport
        if transport is not None and not transport.is_closing():
            transport.write(data)

    def answer(self, inbound: Inbound, status: int, lines: bytes, body: bytes) -> None:
        """Answer from here, without an instance."""
        length = b"" if status == 204 else b"content-length: %d\r\n" % len(body)
        shown = b"" if inbound.method == b"HEAD" else body
        connection = self.connection_line(inbound)
        head = (status_line(status), lines, inbound.reply_lines, length, connection, b"\r\n", shown)
        self.write(b"".join(head))
        if self.exchange is None:
            self._answered(inbound.whole)

    def connection_line(self, inbound: Inbound) -> bytes:
        """What the answer's head says about the connection; nothing where the version's default holds."""
        if not self.keep:
            return b"connection: close\r\n" if inbound.http11 else b""
        return b"" if inbound.http11 else b"connection: keep-alive\r\n"

    def exchange_over(self) -> None:
        """The exchange has written all that it will."""
        self.exchange = None
        self._answered(True)
        if self._ready or self._held:
            self._pump()

    def _is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def _listen(self) -> None:
        if self.transport is not None:
            self.transport.resume_reading()

    def _answered(self, read_to_its_end: bool) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        inbound = self._inbound
        self._phase = Phase.IDLE if inbound is None else Phase.HEAD if inbound.read is NOTHING_READ else Phase.BODY
        self._since = clock.now()
        more = self._ready or inbound is not None
        last = self.gateway.draining or (self._ended and not self._held)
        if self.keep and (more or not last):
            return
        self._forget_requests()
        if read_to_its_end or not self.transport.can_write_eof():  # TLS cannot
            self.transport.close()
        else:
            # Closing with unread bytes makes the kernel send a reset, which may overtake the answer.
            self._phase = Phase.LINGER
            self.transport.write_eof()

    def abort(self) -> None:
        """Close at once; what was written and is not sent yet is lost."""
        if self.transport is not None:
            self.transport.abort()

    def turn_away(self, error: ApiError) -> None:
        """Answer before anything was asked, and close."""
        self.keep = False
        self.refuse(Inbound(), error, False, b"")

    def close_if_idle(self) -> None:
        """Draining: a connection without a request under way is closed."""
        if self.exchange is None and self._inbound is None and not self._ready and self.transport is not None:
            self.transport.close()

    def _leave(self) -> None:
        """The client is gone, or as good as gone."""
        self._forget_requests()
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.client_left()

    def _forget_requests(self) -> None:
        """Serve nothing more of what has been read, and read nothing more."""
        self._deaf = True
        for inbound in self._ready:
            self.gateway.bodies.release(inbound)
        if self._inbound is not None:
            self.gateway.bodies.release(self._inbound)
        self._ready.clear()
        self._inbound = None
        self._held = b""

    def sweep(self, now: Instant) -> None:
        """Check the limits in time; called every `sweep_s`."""
        limits = self.gateway.limits
        if self.full_since:
            if now - self.full_since > limits.client_write_s_max * 1e9:
                self.abort()
            return
        if self.exchange is not None or self.transport is None:
            return
        waited_s = (now - self._since) / 1e9
        if self._phase == Phase.IDLE:
            if waited_s > limits.idle_s_max:
                self.transport.close()
        elif self._phase == Phase.HEAD:
            if waited_s > limits.head_s_max:
                self._too_slow("head_s_max", limits.head_s_max)
        elif self._phase == Phase.BODY:
            if waited_s > limits.body_s_max:
                self._too_slow("body_s_max", limits.body_s_max)
        elif waited_s > limits.linger_s_max:
            self.transport.abort()

    def _too_slow(self, limit: str, limit_s: float) -> None:
        assert self._inbound is not None
        self._inbound.error = wire.slow_request(limit, limit_s)
        self._stop_parsing(None)
        self._pump()

    def refuse(self, inbound: Inbound, error: ApiError, anthropic: bool, about: bytes) -> None:
        """Answer with an error."""
        retry = b"true" if error.worth_retrying else b"false"
        lines = b"content-type: application/json\r\nx-should-retry: %b\r\n" % retry + about
        if error.retry_after_s is not None:
            lines += b"retry-after: %d\r\n" % error.retry_after_s
        self.answer(inbound, error.status, lines, wire.body(error, anthropic))
