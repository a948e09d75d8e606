"""A fake engine that a test scripts at the byte level. Real sockets on 127.0.0.1, in the test's own event loop.

    async with FakeEngine() as engine:
        engine.script = sse_answer([b"data: one\n\n", b"data: [DONE]\n\n"])      # what every inference request gets
        ...
        assert engine.requests[0].body == b'{"model":"m"}'                        # exactly what came
        await engine.requests[0].peer_closed.wait()                              # the gateway has let go of it

A script is a coroutine function that is handed a `Wire`: it sends exact bytes in exact writes, waits for what the test
lets it wait for (an `asyncio.Event`, never a clock), closes with FIN or RST, or stops reading.

    async def script(wire: Wire) -> None:
        wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe")
        await gate.wait()
        wire.reset()

`/health`, `/v1/models` and `/metrics` answer as the attributes say. `refuse()` closes the listener, so that connects
are refused; `accept()` opens it again on the same port. `FakeEngine.open` holds connections that are up now, `connects`
counts all that ever were. Ready-made scripts: `json_answer`, `sse_answer`, `raw`, `chunked`. Bytes: `head`, `chunk`.
"""

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self, cast

END = b"0\r\n\r\n"
"""The end of a chunked body."""

REQUEST_BYTES_MAX = 256 * 1024 * 1024


class Received:
    """One request as it came in: nothing decoded but the framing."""

    def __init__(self, head: bytes, body: bytes) -> None:
        self.head = head
        """Request line and headers, with the blank line."""
        self.body = body
        self.peer_closed = asyncio.Event()
        """Set when the other side has closed the connection, by FIN or RST."""

    @property
    def target(self) -> str:
        return self.head.split(b" ", 2)[1].decode()

    @property
    def headers(self) -> dict[str, str]:
        """By lower-case name; the last of each wins."""
        lines = self.head.decode("latin-1").split("\r\n")[1:-2]
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


class Wire:
    """One connection as a script sees it."""

    def __init__(self, connection: "_Connection", request: Received) -> None:
        self._connection = connection
        self.request = request

    @property
    def transport(self) -> asyncio.Transport | None:
        """None once the connection is gone; then `send`, `close` and `reset` do nothing."""
        return self._connection.transport

    def send(self, data: bytes) -> None:
        """Write now. Two sends may still be read as one: put an `await wire.turn()` between them to keep them apart."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    async def turn(self, times: int = 3) -> None:
        """Let the loop run, so that the other side has read what was sent."""
        for _ in range(times):
            await asyncio.sleep(0)

    async def flushed(self) -> None:
        """Wait until the other side has room for what was sent."""
        await self._connection.room.wait()

    def close(self) -> None:
        """FIN after what was sent."""
        if self.transport is not None:
            self.transport.close()

    def reset(self) -> None:
        """RST: what was sent may be lost on its way."""
        if self.transport is not None:
            reset(self.transport)

    def stop_reading(self) -> None:
        """Take nothing more from the socket: the sender's buffers fill up."""
        if self.transport is not None:
            self.transport.pause_reading()


def reset(transport: asyncio.Transport) -> None:
    """Close with RST."""
    if transport.is_closing():
        return
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


Script = Callable[[Wire], Awaitable[None]]


class FakeEngine:
    """One engine on a free port. Use as an async context manager."""

    def __init__(
        self, models: Iterable[str] = ("m",), tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.tls = tls
        self.host = host
        self.models = list(models)
        self.script: Script = json_answer({"object": "fake", "choices": []})
        """What a request to any path but the three below gets."""
        self.scripts: dict[str, Script] = {}
        """Scripts for single paths."""
        self.health_status = 200
        self.metrics: bytes | None = None
        """Text of /metrics; None: 404."""
        self.requests: list[Received] = []
        """Inference requests, in the order in which they were whole; not /health, /v1/models, /metrics."""
        self.seen = 0
        """All requests."""
        self.gone = False
        """Reset every connection as soon as it is made: a process that is gone, without giving its port to others."""
        self.connects = 0
        self.open: set[_Connection] = set()
        self.port = port
        self._server: asyncio.Server | None = None
        self._arrived = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def id(self) -> str:
        return f"{self.host}:{self.port}"

    async def accept(self) -> None:
        """Listen (again), on the port that was used before if there was one."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), self.host, self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Refuse new connections; those that are up go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def cut_all(self) -> None:
        """RST on every connection, like a process that was killed."""
        for connection in tuple(self.open):
            if connection.transport is not None:
                reset(connection.transport)

    async def close_idle(self) -> None:
        """FIN on every connection, once the scripts that run are through."""
        while any(connection.task is not None for connection in self.open):
            await asyncio.sleep(0)
        for connection in tuple(self.open):
            if connection.transport is not None:
                connection.transport.close()

    async def request(self, number: int) -> Received:
        """Wait until so many requests (counted from 1) have come in whole; the last of them."""
        while len(self.requests) < number:
            self._arrived.clear()
            await self._arrived.wait()
        return self.requests[number - 1]

    async def stop(self) -> None:
        self.refuse()
        for connection in tuple(self.open):
            if connection.task is not None:
                connection.task.cancel()
            if connection.transport is not None:
                connection.transport.abort()
        while self.open:
            await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _script_for(self, received: Received) -> Script:
        path = received.target.partition("?")[0]
        if path in self.scripts:
            return self.scripts[path]
        if path == "/health":
            return raw(head(self.health_status, "content-length: 0"))
        if path == "/v1/models":
            cards = [{"id": model, "object": "model", "max_model_len": 8192} for model in self.models]
            return json_answer({"object": "list", "data": cards})
        if path == "/metrics":
            return raw(head(404, "content-length: 0")) if self.metrics is None else text_answer(self.metrics)
        self.requests.append(received)
        self._arrived.set()
        return self.script


class _Connection(asyncio.Protocol):
    """Cuts requests out of the bytes (Content-Length or chunked) and runs the script for each, one after the other."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.transport: asyncio.Transport | None = None
        self.task: asyncio.Task[None] | None = None
        self.room = asyncio.Event()
        self.room.set()
        self._buffer = b""
        self._running: Received | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit
        self.engine.open.add(self)
        self.engine.connects += 1
        if self.engine.gone:
            reset(self.transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        assert len(self._buffer) <= REQUEST_BYTES_MAX
        self._next()

    def eof_received(self) -> None:
        if self._running is not None:
            self._running.peer_closed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._running is not None:
            self._running.peer_closed.set()
        self.room.set()
        self.transport = None
        self.engine.open.discard(self)

    def pause_writing(self) -> None:
        self.room.clear()

    def resume_writing(self) -> None:
        self.room.set()

    def _next(self) -> None:
        if self.task is not None:
            return
        cut = cut_request(self._buffer)
        if cut is None:
            return
        received, self._buffer = cut
        self.engine.seen += 1
        self._running = received
        script = self.engine._script_for(received)
        self.task = asyncio.ensure_future(self._run(script, Wire(self, received)))

    async def _run(self, script: Script, wire: Wire) -> None:
        try:
            await script(wire)
        finally:
            self.task = None
        if self.transport is not None and not self.transport.is_closing():
            self._running = None
            self._next()


def cut_request(data: bytes) -> tuple[Received, bytes] | None:
    """The first whole request in the bytes and what follows it; None if there is none yet."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    request_head, rest = data[: end + 4], data[end + 4 :]
    received = Received(request_head, b"")
    length = received.headers.get("content-length")
    if length is not None:
        if len(rest) < int(length):
            return None
        received.body = rest[: int(length)]
        return received, rest[int(length) :]
    if received.headers.get("transfer-encoding") == "chunked":
        cut = _cut_chunked(rest)
        if cut is None:
            return None
        received.body, rest = cut
    return received, rest


def _cut_chunked(data: bytes) -> tuple[bytes, bytes] | None:
    body = b""
    while True:
        line, found, data = data.partition(b"\r\n")
        if not found:
            return None
        size = int(line.split(b";")[0], 16)
        if len(data) < size + 2:
            return None
        body, data = body + data[:size], data[size + 2 :]
        if size == 0:
            return body, data


def head(status: int, *lines: str) -> bytes:
    """A response head."""
    return "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status} Status", *lines, "")).encode()


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


SSE_HEAD = head(200, "content-type: text/event-stream; charset=utf-8", "transfer-encoding: chunked")


def raw(*writes: bytes, fin: bool = False) -> Script:
    """These bytes in these writes, each read by the other side before the next; then FIN if asked for."""

    async def script(wire: Wire) -> None:
        for data in writes:
            wire.send(data)
            await wire.turn()
        if fin:
            wire.close()

    return script


def text_answer(body: bytes, status: int = 200, content_type: str = "text/plain") -> Script:
    return raw(head(status, f"content-type: {content_type}", f"content-length: {len(body)}") + body)


def json_answer(value: object, status: int = 200, *lines: str) -> Script:
    """A JSON answer with Content-Length, and more header lines if wanted."""
    body = json.dumps(value).encode()
    return raw(head(status, "content-type: application/json", f"content-length: {len(body)}", *lines) + body)


def chunked(parts: Iterable[bytes], response_head: bytes = SSE_HEAD, end: bytes = END) -> Script:
    """One chunk and one write a part."""
    return raw(response_head, *(chunk(part) for part in parts), end)


def sse_answer(events: Iterable[bytes]) -> Script:
    """A stream of whole events (with their blank lines), one write each."""
    return chunked(events)


def delta(content: str, finish_reason: str | None = None) -> bytes:
    """One chat event as vLLM writes it."""
    choice = {"index": 0, "delta": {"content": content}, "logprobs": None, "finish_reason": finish_reason}
    return event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]})


def event(value: object) -> bytes:
    """One SSE event with JSON data."""
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
