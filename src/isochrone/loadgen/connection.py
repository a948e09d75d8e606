"""One HTTP/1.1 connection of the load client: one call at a time, kept open between calls."""

import asyncio
import time
from collections.abc import Callable
from typing import cast

import httptools

from isochrone.loadgen.calls import Call, Result
from isochrone.loadgen.meter import BadStream, StreamMeter, whole_answer_usage

ANSWER_BYTES_MAX = 16 << 20
"""Longest answer, not streamed, that the client keeps."""


class Connection(asyncio.Protocol):
    """Sends calls and fills in their results. `released` is called once per call, whether it went well or not."""

    def __init__(self, host: str, released: Callable[["Connection"], None]) -> None:
        self._host = host
        self._released = released
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._result: Result | None = None
        self._meter: StreamMeter | None = None
        self._whole: list[bytes] = []
        self._whole_bytes = 0
        self._now = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self.usable = True
        """False: closed, or must not carry another call."""
        self.calls = 0

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from asyncio's

    def data_received(self, data: bytes) -> None:
        self._now = time.monotonic()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, BadStream):
            # BadStream is raised inside a callback; llhttp then reports an error of its own.
            self.fail("protocol")

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._now = time.monotonic()
        self._finish("truncated" if self._result is not None and self._result.first_byte_at else "closed")

    # the client's side

    def send(self, call: Call, result: Result) -> "asyncio.Future[None]":
        """Write the call; the future is done when `result` is final."""
        assert self._result is None
        assert self._transport is not None
        self._result = result
        self._meter = StreamMeter() if call.stream else None
        self._whole.clear()
        self._whole_bytes = 0
        self.calls += 1
        self._waiter = asyncio.get_running_loop().create_future()
        result.sent_at = time.monotonic()
        self._transport.write(_render(call, self._host))
        return self._waiter

    def fail(self, error: str) -> None:
        """End the call in hand with `error` and close: the peer sees that this client has left."""
        self.usable = False
        self._now = time.monotonic()
        if self._transport is not None:
            self._transport.abort()
        self._finish(error)

    def in_hand_since(self) -> float | None:
        """When the call in hand was sent."""
        return self._result.sent_at if self._result else None

    # httptools' side

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._result is not None and len(name) == 20 and name.lower() == b"x-isochrone-instance":
            self._result.instance = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        result = self._result
        if result is None:
            return
        result.first_byte_at = self._now
        result.status = self._parser.get_status_code()
        if result.status >= 300:
            self._meter = None

    def on_body(self, body: bytes) -> None:
        if self._meter is not None:
            self._meter.feed(body, self._now)
            return
        self._whole_bytes += len(body)
        if self._whole_bytes > ANSWER_BYTES_MAX:
            raise BadStream("answer longer than the client keeps")
        self._whole.append(body)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.usable = False
            if self._transport is not None:
                self._transport.close()
        self._finish("")

    def _finish(self, error: str) -> None:
        result, waiter = self._result, self._waiter
        if result is None:
            return
        self._result = self._waiter = None
        result.ended_at = self._now
        result.error = error
        try:
            self._account(result)
        except BadStream:
            result.error = result.error or "protocol"
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        self._released(self)

    def _account(self, result: Result) -> None:
        """Move what the body said into the result."""
        if result.status >= 300:
            result.error = result.error or "http"
            return
        if self._meter is None:
            if result.error:
                return
            counts = whole_answer_usage(b"".join(self._whole))
            result.first_token_at = result.last_token_at = self._now
        else:
            meter = self._meter
            counts = meter.usage()
            result.first_token_at, result.last_token_at, result.tokens = meter.first_at, meter.last_at, meter.events
            if not result.error and meter.failed:
                result.error = "stream"
            elif not result.error and not meter.done:
                result.error = "truncated"
        prompt, output, cached = counts
        result.prompt_tokens, result.cached_tokens = prompt or 0, cached or 0
        result.tokens = result.tokens if output is None else output


def _render(call: Call, host: str) -> bytes:
    lines = [f"{call.method} {call.path} HTTP/1.1", f"host: {host}"]
    lines += [f"{name}: {value}" for name, value in call.headers]
    if call.route != "default":
        lines.append(f"x-isochrone-route: {call.route}")
    if call.body:
        lines += ["content-type: application/json", f"content-length: {len(call.body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + call.body
