"""The client against a small server on a free port that answers what the test tells it to."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from isochrone.loadgen.calls import Call
from isochrone.loadgen.client import Client
from isochrone.loadgen.drive import closed_loop, replay
from isochrone.loadgen.workload import Turn, Workload

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nX-Isochrone-Instance: fake:1\r\n\r\n"
FIRST = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":"tok "}}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
)
DONE = b"data: [DONE]\n\n"
CALL = Call("/v1/chat/completions", b"{}", route="chat")

Handler = Callable[["Peer", bytes, bytes], Awaitable[None]]


def chunk(event: bytes) -> bytes:
    return f"{len(event):x}\r\n".encode() + event + b"\r\n"


WHOLE_STREAM = STREAM_HEAD + b"".join(map(chunk, [FIRST, TOKEN, TOKEN, TOKEN, USAGE, DONE])) + b"0\r\n\r\n"


class Peer:
    """A server that reads a request and lets `handler` write; counts connections and requests."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.connections = 0
        self.heads: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.writer: asyncio.StreamWriter
        self.left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                length = next(
                    (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length")), 0
                )
                body = await reader.readexactly(length)
                self.writer = writer
                await self._handler(self, head, body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        finally:
            writer.close()


@asynccontextmanager
async def pair(handler: Handler, **limits: float) -> AsyncIterator[tuple[Client, Peer]]:
    peer = Peer(handler)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with Client("127.0.0.1", port, **limits) as client:  # type: ignore[arg-type]
            yield client, peer
    finally:
        server.close()
        for writer in peer.writers:
            writer.close()
        await server.wait_closed()


async def answer_stream(peer: Peer, _head: bytes, _body: bytes) -> None:
    peer.writer.write(WHOLE_STREAM)


def test_stream_is_metered_and_the_connection_reused() -> None:
    async def scene() -> None:
        async with pair(answer_stream) as (client, peer):
            results = [await client.call(CALL) for _ in range(3)]
            for result in results:
                assert result.served
                assert (result.tokens, result.prompt_tokens, result.cached_tokens) == (3, 7, 4)
                assert result.instance == "fake:1"
                assert result.sent_at is not None
                assert result.first_token_at is not None
                assert result.intended_at <= result.sent_at <= result.first_token_at
            assert peer.connections == 1
            assert b"x-isochrone-route: chat" in peer.heads[0]

    uvloop.run(scene())


def test_bytes_one_by_one() -> None:
    async def drip(peer: Peer, _head: bytes, _body: bytes) -> None:
        for byte in WHOLE_STREAM:
            peer.writer.write(bytes([byte]))
            await peer.writer.drain()

    async def scene() -> None:
        async with pair(drip) as (client, _):
            result = await client.call(CALL)
            assert result.served
            assert (result.tokens, result.cached_tokens) == (3, 4)

    uvloop.run(scene())


def test_answer_that_is_not_streamed() -> None:
    body = b'{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":5,"completion_tokens":2}}'

    async def whole(peer: Peer, _head: bytes, _body: bytes) -> None:
        peer.writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    async def scene() -> None:
        async with pair(whole) as (client, _):
            result = await client.call(Call("/v1/chat/completions", b"{}", stream=False))
            assert result.served
            assert (result.tokens, result.tpot_s) == (2, None)
            assert result.ttft_s == result.e2e_s

    uvloop.run(scene())


def test_latency_counts_from_the_intended_time() -> None:
    async def scene() -> None:
        async with pair(answer_stream) as (client, _):
            result = await client.call(CALL, intended_at=time.monotonic() - 10)
            assert result.ttft_s is not None
            assert result.ttft_s >= 10

    uvloop.run(scene())


@pytest.mark.parametrize(
    ("written", "error", "status"),
    [
        (STREAM_HEAD + chunk(TOKEN), "truncated", 200),
        (STREAM_HEAD + chunk(TOKEN) + b"0\r\n\r\n", "truncated", 200),
        (STREAM_HEAD + chunk(b'data: {"error":{}}\n\n') + b"0\r\n\r\n", "stream", 200),
        (b"", "closed", 0),
        (b"SSH-2.0-OpenSSH\r\n", "protocol", 0),
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\n\r\n{}", "http", 503),
    ],
)
def test_failures_have_kinds(written: bytes, error: str, status: int) -> None:
    async def breaks(peer: Peer, _head: bytes, _body: bytes) -> None:
        peer.writer.write(written)
        peer.writer.close()

    async def scene() -> None:
        async with pair(breaks) as (client, _):
            result = await client.call(CALL)
            assert not result.served
            assert (result.error, result.status) == (error, status)
            assert result.ended_at is not None

    uvloop.run(scene())


def test_refused_connection() -> None:
    async def scene() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        async with Client("127.0.0.1", port) as client:
            assert (await client.call(CALL)).error == "connect"

    uvloop.run(scene())


def test_a_stale_connection_is_tried_again_once() -> None:
    async def once(peer: Peer, head: bytes, body: bytes) -> None:
        if len(peer.heads) == 2:
            peer.writer.close()  # as an engine does whose keep-alive ran out
        else:
            await answer_stream(peer, head, body)

    async def scene() -> None:
        async with pair(once) as (client, peer):
            assert (await client.call(CALL)).served
            assert (await client.call(CALL)).served
            assert (peer.connections, len(peer.heads)) == (2, 3)

    uvloop.run(scene())


def test_silence_times_out_and_the_peer_sees_the_client_leave() -> None:
    async def silent(peer: Peer, _head: bytes, _body: bytes) -> None:
        peer.writer.write(STREAM_HEAD)

    async def scene() -> None:
        async with pair(silent, whole_s=0.05) as (client, peer):
            result = await client.call(CALL)
            assert result.error == "timeout"
            await asyncio.wait_for(peer.left.wait(), 5)

    uvloop.run(scene())


def test_cancelled_call_closes_its_connection() -> None:
    async def scene() -> None:
        asked = asyncio.Event()

        async def silent(_peer: Peer, _head: bytes, _body: bytes) -> None:
            asked.set()

        async with pair(silent) as (client, peer):
            task = asyncio.create_task(client.call(CALL))
            await asked.wait()
            task.cancel()
            await asyncio.wait_for(peer.left.wait(), 5)
            assert task.cancelled()

    uvloop.run(scene())


def test_connections_are_bounded_and_the_queue_too() -> None:
    async def scene() -> None:
        gate = asyncio.Event()

        async def gated(peer: Peer, head: bytes, body: bytes) -> None:
            writer = peer.writer
            await gate.wait()
            writer.write(WHOLE_STREAM)

        async with pair(gated, connections_max=2, waiting_max=3) as (client, peer):
            tasks = [asyncio.create_task(client.call(CALL)) for _ in range(6)]
            turned_away = await tasks[5]
            assert turned_away.error == "no_connection"
            gate.set()
            assert all(result.served for result in await asyncio.gather(*tasks[:5]))
            assert peer.connections == 2

    uvloop.run(scene())


def test_closed_loop_keeps_the_number_in_flight() -> None:
    async def scene() -> None:
        now, most = 0, 0

        async def counted(peer: Peer, head: bytes, body: bytes) -> None:
            nonlocal now, most
            writer = peer.writer
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.001)
            now -= 1
            writer.write(WHOLE_STREAM)

        async with pair(counted) as (client, _):
            results = await closed_loop(client, iter([CALL] * 100_000), 8, 0.1)
            assert most == 8
            assert len(results) > 16
            assert all(result.served for result in results)

    uvloop.run(scene())


def test_replay_releases_a_turn_after_the_one_before() -> None:
    async def scene() -> None:
        async with pair(answer_stream) as (client, peer):
            turns = (Turn(0.0, 0.0, CALL, False), Turn(0.0, 0.02, CALL, True), Turn(0.05, 0.0, CALL, True))
            ended: list[None] = []
            results = await replay(client, Workload((turns,), 0.0, 0.1), lambda: ended.append(None))
            assert len(results) == 2
            assert len(ended) == len(peer.heads) == 3
            assert results[1].intended_at - results[0].intended_at <= 0.05
            assert all(result.served and (result.sent_at or 0) >= result.intended_at for result in results)

    uvloop.run(scene())
