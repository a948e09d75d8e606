"""Several requests on one connection, many connections, and clients that read slowly (Z-01)."""

import asyncio

from tests.support.fake_engine import DONE, END, SSE_HEAD, FakeEngine, Wire, chunk, delta, head, json_answer, sse_answer
from tests.support.raw_client import RawClient, ask, chat, get, post, sized
from tests.support.running import quick, run, serving

TOKENS = [delta("one"), delta(" two"), delta(" three", "stop")]


def test_pipelined_requests_are_answered_in_order():
    async def test():
        async with FakeEngine() as engine, serving(engine) as served, RawClient(served.port) as client:
            engine.script = sse_answer([*TOKENS, DONE])
            client.send(post(chat(stream=True)) + get("/health") + post(b"{") + post(chat(stream=True)) + get("/nix"))
            statuses = [(await client.answer()).status for _ in range(5)]
            assert statuses == [200, 200, 400, 200, 404]
            assert len(engine.requests) == 2
            await served.until_idle()
            served.assert_nothing_left()

    run(test())


def test_only_so_many_requests_are_read_ahead():
    async def test():
        async with FakeEngine() as engine, serving(engine, limits=quick(pipelined_max=3)) as served:
            async with RawClient(served.port) as client:
                client.send(post(chat()) * 5)
                for _ in range(3):
                    assert (await client.answer()).status == 200
                assert await client.at_end()
            assert len(engine.requests) == 3
            served.assert_nothing_left()

    run(test())


def test_what_comes_during_an_answer_waits_within_bounds():
    """The connection is read no further than `head_bytes_max` and one read; what waited is served."""

    async def test():
        gate = asyncio.Event()

        async def wait(wire: Wire) -> None:
            await gate.wait()
            await json_answer({})(wire)

        limits = quick(head_bytes_max=5000, body_s_max=20.0)
        async with (
            FakeEngine() as engine,
            serving(engine, limits=limits, longest=None) as served,
            RawClient(served.port) as client,
        ):
            engine.script = wait
            client.send(post(chat()))
            await engine.request(1)
            client.send(post(sized(8_000_000)))
            for _ in range(200):
                await asyncio.sleep(0)
            (connection,) = served.gateway.connections
            assert len(connection._held) < 2_000_000
            gate.set()
            assert (await client.answer()).status == 200
            assert (await client.answer()).status == 200
            assert engine.requests[1].body == sized(8_000_000)

    run(test())


def test_a_client_that_stops_reading_stops_the_engine_and_is_cut():
    """Z-01: the gateway holds no more than its buffer; other streams keep their pace."""

    async def test():
        sent = 0

        async def flood(wire: Wire) -> None:
            nonlocal sent
            wire.send(SSE_HEAD)
            piece = chunk(delta("x" * 4000))
            while not wire.request.peer_closed.is_set():
                wire.send(piece)
                sent += len(piece)
                await wire.flushed()
                await wire.turn(1)

        limits = quick(client_buffer_bytes_max=64 * 1024, client_write_s_max=0.5)
        async with FakeEngine() as engine, serving(engine, limits=limits) as served:
            engine.script = flood
            async with RawClient(served.port) as slow:
                slow.writer.transport.pause_reading()
                slow.send(post(chat(stream=True)))
                request = await engine.request(1)
                (exchange,) = served.gateway.brain.requests.values()
                while not exchange.client.full_since:
                    await asyncio.sleep(0)
                reached = sent
                for _ in range(50):
                    await asyncio.sleep(0.001)
                assert exchange.client.transport.get_write_buffer_size() < 1_000_000
                engine.script = sse_answer([*TOKENS, DONE])
                assert (await ask(served.port, post(chat(stream=True)))).body == b"".join([*TOKENS, DONE])
                await request.peer_closed.wait()
                assert sent - reached < 30_000_000  # what kernel buffers hold
            await served.until_idle()
            served.assert_nothing_left()
            assert served.records[-1].outcome == "client_left"

    run(test())


def test_a_slow_reader_gets_every_byte():
    """Backpressure in both directions, with pauses, over a stream larger than all buffers."""
    events = [delta(f"{number} " + "x" * 3000) for number in range(1500)]

    async def test():
        limits = quick(client_buffer_bytes_max=32 * 1024, client_write_s_max=10.0)
        async with FakeEngine() as engine, serving(engine, limits=limits) as served, RawClient(served.port) as client:

            async def all_at_once(wire: Wire) -> None:
                wire.send(SSE_HEAD)
                for item in [*events, DONE]:
                    wire.send(chunk(item))
                    await wire.flushed()
                wire.send(END)

            engine.script = all_at_once
            client.send(post(chat(stream=True)))
            await client.head()
            client.writer.transport.pause_reading()
            (connection,) = served.gateway.connections
            while not connection.full_since:
                await asyncio.sleep(0)
            client.writer.transport.resume_reading()
            chunks, whole = await client._chunks()
            assert whole
            assert b"".join(chunks) == b"".join([*events, DONE])
            await served.until_idle()
            served.assert_nothing_left()

    run(test())


def test_a_large_body_reaches_the_engine():
    async def test():
        body = b'{"model":"m","input":"' + b"x" * 12_000_000 + b'"}'
        limits = quick(body_s_max=20.0)
        async with FakeEngine() as engine, serving(engine, limits=limits, longest=None) as served:
            answer = await ask(served.port, post(body, "/v1/embeddings"))
            assert answer.status == 200
            assert engine.requests[0].body == body

    run(test())


def test_connections_are_bounded():
    async def test():
        async with serving(limits=quick(connections_max=2, idle_s_max=5.0)) as served:
            async with RawClient(served.port) as one, RawClient(served.port) as two:
                for client in (one, two):
                    client.send(get("/v1/models"))
                    await client.answer()
                answer = await ask(served.port, b"")
                assert (answer.status, answer.code) == (503, "connections_full")
            while served.gateway.connections:
                await asyncio.sleep(0)
            assert (await ask(served.port, get("/v1/models"))).status == 200

    run(test())


def test_a_retried_head_is_not_sent_twice():
    """1xx heads of an engine are its own business."""

    async def test():
        async with FakeEngine() as engine, serving(engine) as served:

            async def early_hints(wire: Wire) -> None:
                wire.send(head(103, "link: </x>"))
                await wire.turn()
                await json_answer({"late": 1})(wire)

            engine.script = early_hints
            answer = await ask(served.port, post(chat()))
            assert (answer.status, answer.json()) == (200, {"late": 1})

    run(test())
