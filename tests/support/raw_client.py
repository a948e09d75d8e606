"""A client that sends exact bytes and reads whole answers: what a test needs to look at the gateway from outside."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Answer:
    """One answer. `body` is de-chunked, `chunks` are its chunks as they were framed (none where it was not chunked)."""

    status: int
    headers: dict[str, str]
    """By lower-case name."""
    body: bytes
    chunks: list[bytes]
    whole: bool = True
    """False: the connection ended before the framing did."""

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The error code of an OpenAI-shaped error."""
        error = self.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return str(error["code"])


class RawClient:
    """One connection to the gateway. Use as an async context manager."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port, limit=64 * 1024 * 1024)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.transport.abort()

    def send(self, data: bytes) -> None:
        if not self.writer.transport.is_closing():
            self.writer.write(data)

    def close(self) -> None:
        """FIN."""
        self.writer.close()

    def half_close(self) -> None:
        """FIN, and go on listening."""
        self.writer.write_eof()

    def reset(self) -> None:
        """RST."""
        if not self.writer.transport.is_closing():
            sock = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()

    async def answer(self, method: str = "POST") -> Answer:
        """Read one answer to its end."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status_line, *lines = head[:-4].split("\r\n")
        status = int(status_line.split(" ")[1])
        assert status_line.startswith("HTTP/1.1 ")
        names = [line.partition(":")[0].lower() for line in lines]
        assert len(set(names)) == len(names), f"a header stands twice: {names}"
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        assert not ("content-length" in headers and "transfer-encoding" in headers)
        if status < 200 or status in (204, 304) or method == "HEAD":
            return Answer(status, headers, b"", [])
        if "content-length" in headers:
            try:
                return Answer(status, headers, await self.reader.readexactly(int(headers["content-length"])), [])
            except asyncio.IncompleteReadError as error:
                return Answer(status, headers, error.partial, [], whole=False)
        if headers.get("transfer-encoding") == "chunked":
            chunks, whole = await self._chunks()
            return Answer(status, headers, b"".join(chunks), chunks, whole)
        return Answer(status, headers, await self.reader.read(), [])

    async def _chunks(self) -> tuple[list[bytes], bool]:
        chunks = []
        try:
            async for chunk in self.chunks():
                chunks.append(chunk)  # noqa: PERF401 - a comprehension would lose what came before it broke off
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return chunks, False
        return chunks, True

    async def chunks(self) -> AsyncIterator[bytes]:
        """Those of a chunked body, as they come; after its head."""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        assert await self.reader.readexactly(2) == b"\r\n"

    async def head(self) -> str:
        """Read just the head of an answer."""
        return (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")

    async def at_end(self) -> bool:
        """Wait for the gateway to close the connection; True if it sent nothing before."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True


def chat(stream: bool = False, content: str = "hi", **more: Any) -> bytes:
    """A chat body."""
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": content}], **more}
    if stream:
        body["stream"] = True
    return json.dumps(body).encode()


def post(body: bytes, path: str = "/v1/chat/completions", *lines: str, content_type: str = "application/json") -> bytes:
    """A request with Content-Length."""
    head = [f"POST {path} HTTP/1.1", "Host: gateway", f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, *lines, "", ""]).encode() + body


def get(path: str, *lines: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: gateway", *lines, "", ""]).encode()


async def ask(port: int, request: bytes) -> Answer:
    """One request on a connection of its own."""
    async with RawClient(port) as client:
        client.send(request)
        return await client.answer(request.split(b" ", 1)[0].decode())


def sized(size: int) -> bytes:
    """A chat body of exactly so many bytes."""
    body = chat(content="")
    return body.replace(b'"content": ""', b'"content": "' + b"x" * (size - len(body)) + b'"')
