"""One HTTP/1.1 connection to an emulated instance."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import cast

import httptools

from isochrone.emulator.body import Refused, read_chat, read_completion
from isochrone.emulator.instance import Generation, Instance
from isochrone.emulator.pages import PAGES, response

BODY_BYTES_MAX = 64 * 1024 * 1024
"""A longer body is answered 413."""
HEAD_BYTES_MAX = 64 * 1024
"""Request line and headers; more closes the connection."""
PIPELINED_REQUESTS_MAX = 16
"""Requests read ahead of the one that is being answered; beyond, no more is taken from the socket until it is done."""
UNSENT_BYTES_MAX = 4 * 1024 * 1024
"""A client that reads so slowly that more than this waits for it is cut off."""

_GENERATE = {"/v1/chat/completions": read_chat, "/v1/completions": read_completion}
_PATHS = {path for _, path in PAGES} | set(_GENERATE)


@dataclass(slots=True)
class Incoming:
    """A request being read."""

    url: bytes = b""
    method: str = ""
    body: bytearray = field(default_factory=bytearray)
    keep_alive: bool = True
    head_bytes: int = 0


class Connection(asyncio.Protocol):
    """Reads requests one after the other, answers each in turn, and tells the instance when the client leaves."""

    def __init__(self, instance: Instance, connections: "set[Connection]") -> None:
        self._instance = instance
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._incoming = Incoming()
        self._waiting: deque[Incoming] = deque()
        self._answering: Incoming | None = None
        self._generation: Generation | None = None
        self._transport: asyncio.Transport
        self._lost = False
        self.idle_since: float | None = None
        """Loop time since when nothing has been asked; None while something is read or answered."""
        self.draining = False

    # Socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        self._connections.add(self)
        self.idle_since = asyncio.get_running_loop().time()

    def data_received(self, data: bytes) -> None:
        self.idle_since = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._reject(400, "This server does not switch protocols.")
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if isinstance(cause, Refused):
                self._reject(cause.status, cause.message)
            else:
                raise
        except httptools.HttpParserError as error:
            self._reject(400, f"Not HTTP/1.1: {error}")

    def pause_writing(self) -> None:
        self._lost = True
        self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        self._connections.discard(self)
        if self._generation is not None:
            self._instance.abort(self._generation)
            self._generation = None

    # Parser

    def on_message_begin(self) -> None:
        self._incoming = Incoming()

    def on_url(self, url: bytes) -> None:
        self._incoming.url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        if name.lower() == b"expect" and value.lower() == b"100-continue" and self._answering is None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._incoming.body += body
        if len(self._incoming.body) > BODY_BYTES_MAX:
            raise Refused(413, f"The body is longer than {BODY_BYTES_MAX} bytes.")

    def on_message_complete(self) -> None:
        incoming = self._incoming
        incoming.method = self._parser.get_method().decode()
        incoming.keep_alive = self._parser.should_keep_alive()
        if self._answering is not None:
            self._waiting.append(incoming)
            if len(self._waiting) >= PIPELINED_REQUESTS_MAX:
                self._transport.pause_reading()
            return
        self._answer(incoming)

    def _count_head(self, size: int) -> None:
        self._incoming.head_bytes += size
        if self._incoming.head_bytes > HEAD_BYTES_MAX:
            raise Refused(400, f"The request's head is longer than {HEAD_BYTES_MAX} bytes.")

    # Answers

    def _answer(self, incoming: Incoming) -> None:
        self._answering = incoming
        try:
            path = httptools.parse_url(incoming.url).path.decode()
            self._route(incoming, path)
        except Refused as refusal:
            self._whole(response(refusal.status, refusal.body()))
        except httptools.HttpParserInvalidURLError:
            self._whole(response(400, Refused(400, "The URL cannot be read.").body()))

    def _route(self, incoming: Incoming, path: str) -> None:
        instance = self._instance
        if (read := _GENERATE.get(path)) is not None and incoming.method == "POST":
            if self.draining:
                raise Refused(503, "The engine is shutting down.", None, "ServiceUnavailableError")
            ask = read(bytes(incoming.body), instance.character.model)
            self._generation = instance.start(ask, self)
        elif (page := PAGES.get((incoming.method, path))) is not None:
            self._whole(page(instance, bytes(incoming.body)))
        elif path in _PATHS:
            raise Refused(405, f"{path} does not take {incoming.method}.", None, "MethodNotAllowed")
        else:
            raise Refused(404, f"There is no {path[:200]}.", None, "NotFoundError")

    def write(self, data: bytes) -> None:
        """Bytes of the generation's answer."""
        if not self._lost:
            self._transport.write(data)

    def done(self) -> None:
        """The generation's answer is whole."""
        self._generation = None
        self._next()

    def _whole(self, answer: bytes) -> None:
        self._transport.write(answer)
        self._next()

    def _next(self) -> None:
        """After an answer: the next request that has been read, or wait for one."""
        answered = self._answering
        self._answering = None
        if self._lost:
            return
        if self.draining or (answered is not None and not answered.keep_alive):
            self._transport.close()
        elif self._waiting:
            self._transport.resume_reading()
            self._answer(self._waiting.popleft())
        else:
            self.idle_since = asyncio.get_running_loop().time()

    def _reject(self, status: int, message: str) -> None:
        """The connection cannot go on: say why if nothing is being answered, and close."""
        if self._answering is None:
            self._transport.write(response(status, Refused(status, message).body(), close=True))
        self._transport.close()

    def close_if_idle(self) -> None:
        if self.idle_since is not None:
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection, whatever it is doing."""
        self._transport.abort()
