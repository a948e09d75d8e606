"""GET from an instance, for heartbeats, metrics and model lists: apart from the data path, bounded in time and size."""

import asyncio
from typing import NamedTuple, cast

import httptools

from isochrone.gateway.pool import Pool

BODY_BYTES_MAX = 4 * 1024 * 1024
"""Longest answer; a real engine's /metrics has 55 KB."""


class Fetched(NamedTuple):
    """An answer. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class FetchError(OSError):
    """The instance answered something that is not HTTP, or too much of it."""


async def get(pool: Pool, path: str, timeout_s: float) -> Fetched:
    """One GET over a connection of its own. Raises OSError (refused, reset, FetchError) or TimeoutError."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Fetched] = loop.create_future()
    getter: Getter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            getter = await pool.reach(lambda: Getter(answer))
            getter.send(
                b"".join((
                    b"GET ", pool.base, path.encode(), pool.host_line, pool.authorization,
                    b"accept: */*\r\nconnection: close\r\n\r\n",
                ))
            )  # fmt: skip
            return await answer
    finally:
        if getter is not None:
            getter.abort()


class Getter(asyncio.Protocol):
    """Collects one answer."""

    def __init__(self, answer: "asyncio.Future[Fetched]") -> None:
        self._answer = answer
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._status = 0

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def send(self, data: bytes) -> None:
        """A transport that has closed meanwhile says so through `connection_lost`."""
        if self._transport is not None:
            self._transport.write(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._answer.done():
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(FetchError(f"not HTTP: {error}"))
        if len(self._body) > BODY_BYTES_MAX:
            self._fail(FetchError(f"the answer is larger than {BODY_BYTES_MAX} bytes"))

    def eof_received(self) -> None:
        until_eof = "content-length" not in self._headers and "transfer-encoding" not in self._headers
        if self._status and until_eof:
            self.on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._parser = None
        self._transport = None
        self._fail(exc if isinstance(exc, OSError) else ConnectionResetError("the instance closed the connection"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        if self._status < 200:
            self._headers.clear()
        elif not self._answer.done():
            self._answer.set_result(Fetched(self._status, self._headers, bytes(self._body)))

    def _fail(self, error: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)
