"""One connection to an instance: HTTP/1.1 as a client, one exchange at a time.

The parser's callbacks only take notes. What they noted is acted upon once, after the parser has seen all bytes of a
read, so that one read leads to at most one write, and no callback runs inside the parser that could close it.
"""

import asyncio
from typing import TYPE_CHECKING, NamedTuple, cast

import httptools

from isochrone.gateway import headers
from isochrone.nouns.instant import Instant

if TYPE_CHECKING:
    from isochrone.gateway.exchange import Exchange
    from isochrone.gateway.pool import Pool

JOIN_BYTES_MAX = 64 * 1024
"""Head and body up to this are joined for one write; a larger body is written beside its head, without a copy."""


class Head(NamedTuple):
    """An answer's head, sorted out."""

    status: int
    lines: bytes
    """To be passed on."""
    read: dict[bytes, bytes]
    keep: bool
    """The connection stays open after it."""


class Upstream(asyncio.Protocol):
    """A connection that a `Pool` lends to one exchange after the other."""

    __slots__ = (
        "_complete",
        "_headers",
        "_interim",
        "_junk",
        "_keep",
        "_parser",
        "_parts",
        "_paused",
        "_read_bytes",
        "_status",
        "_until_eof",
        "exchange",
        "idle_since",
        "pool",
        "reused",
        "transport",
    )  # fmt: skip

    def __init__(self, pool: "Pool") -> None:
        self.pool = pool
        self.transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.reused = False
        """Has answered before: the instance may have closed it just now (F-13)."""
        self.idle_since: Instant = 0
        self._paused = False
        self._parser: httptools.HttpResponseParser = httptools.HttpResponseParser(self)
        self._reset()

    def _reset(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []
        self._status = 0
        self._interim = False
        self._complete = False
        self._keep = False
        self._junk = False
        self._until_eof = False
        self._read_bytes = 0

    # What the pool and the exchange ask for.

    def start(self, exchange: "Exchange") -> None:
        """Send the exchange's request and relay what comes back to it."""
        assert self.exchange is None
        assert self.transport is not None
        self.exchange = exchange
        exchange.upstream = self
        pool = self.pool
        head = exchange.request_head(pool.base, pool.host_line, pool.authorization)
        body = exchange.outgoing
        if len(body) <= JOIN_BYTES_MAX:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))
        if exchange.client.full_since:
            self.pause()

    def abort(self) -> None:
        """Close at once, whatever is under way; the exchange hears nothing more."""
        self.exchange = None
        if self.transport is not None:
            self.transport.abort()

    def pause(self) -> None:
        """Read no more until `resume`: the client is slower than the instance."""
        if not self._paused and self.transport is not None and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self.transport is not None and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit
        self.pool.made += 1

    def data_received(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:  # an idle connection has nothing to say
            self.abort()
            return
        if not self._read_bytes and (body := self.pool.head.body_of(data)) is not None:
            self._take_known(exchange, body)
            return
        self._read_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._complete:
                self._not_http(exchange, error)
                return
            self._junk = True
        if exchange.answer is None:
            if not self._status:
                if self._read_bytes > self.pool.limits.answer_head_bytes_max:
                    self._not_http(exchange, None)
                return
            lines, read = headers.sort_out(headers.RESPONSE, self._headers)
            if self._complete and self._read_bytes == len(data) and not self._junk:
                self._get_to_know(data, Head(self._status, lines, read, self._keep))
            self._until_eof = exchange.head_arrived(self._status, lines, read, self._complete)
            if self.exchange is not exchange:  # what the head led to has closed us
                return
        parts = self._parts
        if len(parts) == 1:
            body = parts[0]
            parts.clear()
        elif parts:
            body = b"".join(parts)
            parts.clear()
        elif self._complete:
            body = b""
        else:
            return
        self._pass_on(exchange, body, self._complete)

    def _take_known(self, exchange: "Exchange", body: bytes) -> None:
        """A whole answer came whose head is known."""
        head = self.pool.head.parsed
        assert head is not None
        self._read_bytes, self._complete, self._keep = len(body) + 1, True, head.keep
        read = {**head.read, b"content-length": b"%d" % len(body)}
        exchange.head_arrived(head.status, head.lines, read, True)
        if self.exchange is exchange:
            self._pass_on(exchange, body, True)

    def _get_to_know(self, data: bytes, head: Head) -> None:
        """`data` was one whole answer."""
        length = head.read.get(b"content-length")
        if length is not None and self.pool.head.is_news():
            self.pool.head.learn(data, int(length), head)

    def _pass_on(self, exchange: "Exchange", body: bytes, complete: bool) -> None:
        """Hand body bytes to the answer; at its end, give the connection back first: the next request may want it."""
        answer = exchange.answer
        assert answer is not None
        if not complete:
            answer.take(body, False)
            return
        self.exchange = None
        exchange.upstream = None
        self._finish()
        answer.take(body, True)

    def _finish(self) -> None:
        transport = self.transport
        assert transport is not None
        if self._junk or not self._keep or transport.get_write_buffer_size():
            transport.abort()
            return
        self.resume()
        self.reused = True
        self._reset()
        self.pool.release(self)

    def eof_received(self) -> None:
        exchange = self.exchange
        if exchange is not None and self._until_eof:
            self._pass_on(exchange, b"", True)

    def connection_lost(self, exc: Exception | None) -> None:
        exchange, self.exchange = self.exchange, None
        # The parser holds our callbacks and we hold the parser: let go, or only the garbage collector ends the ring.
        del self._parser
        self.transport = None
        self.pool.forget(self)
        if exchange is None:
            return
        if self.reused and not self._read_bytes:
            self.pool.connect(exchange)
        else:
            exchange.lost(str(exc) if exc is not None else "the instance closed the connection")

    def _not_http(self, exchange: "Exchange", error: Exception | None) -> None:
        self.abort()
        exchange.garbled(f"not HTTP: {error or 'the head does not end'}"[:200])

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self._complete:
            self._junk = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._status:  # else it is a trailer
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._junk:
            return
        status = self._parser.get_status_code()
        if status < 200:  # 100, 103: the real answer follows
            self._interim = True
            self._headers.clear()
        else:
            self._status = status

    def on_body(self, data: bytes) -> None:
        if not self._junk:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        else:
            self._complete = True
            self._keep = self._parser.should_keep_alive()  # the parser knows only while it is at it
