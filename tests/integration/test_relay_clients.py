"""Clients that leave, that are slow, that send too much or nonsense (A-05, A-10, A-11, A-16, C-01, C-05, Z-01)."""

import asyncio

import pytest

from tests.support.fake_engine import DONE, END, SSE_HEAD, FakeEngine, Wire, chunk, delta, head, json_answer, sse_answer
from tests.support.raw_client import RawClient, ask, chat, get, post
from tests.support.running import quick, run, serving

TOKENS = [delta("one"), delta(" two"), delta(" three", "stop")]


async def never(wire: Wire) -> None:
    await wire.request.peer_closed.wait()


async def forever(wire: Wire) -> None:
    wire.send(SSE_HEAD)
    while not wire.request.peer_closed.is_set():
        wire.send(chunk(TOKENS[0]))
        await wire.flushed()
        await wire.turn()


# Clients that leave.


@pytest.mark.parametrize("leave", ["close", "half_close", "reset"])
@pytest.mark.parametrize("when", ["before the head", "in the stream", "not streamed"])
def test_a_client_that_leaves_frees_the_engine(when: str, leave: str):
    """C-01. A half-close counts as leaving: it cannot be told from it."""

    async def test():
        async with FakeEngine() as engine, serving(engine) as served, RawClient(served.port) as client:
            engine.script = forever if when == "in the stream" else never
            client.send(post(chat(stream=when != "not streamed")))
            request = await engine.request(1)
            if when == "in the stream":
                await client.reader.readuntil(b"one")
            getattr(client, leave)()
            await request.peer_closed.wait()
            await served.until_idle()
            served.assert_nothing_left()
            assert [record.outcome for record in served.records] == ["client_left"]
            assert [view.failures for view in served.gateway.cluster.instances()] == [0]

    run(test())


def test_a_client_that_leaves_while_we_connect_leaves_no_connection():
    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            for _ in range(20):
                async with RawClient(served.port) as client:
                    client.send(post(chat()))
                    while not served.gateway.brain.requests:
                        await asyncio.sleep(0)
                    client.reset()
                    await served.until_idle()
            served.assert_nothing_left()
            while served.gateway.pools[engine.id].open or engine.open:
                await asyncio.sleep(0.005)

    run(test())


def test_one_clients_leaving_stops_nobody_else():
    """C-05: the same id given by two clients, one leaves."""

    async def test():
        gate = asyncio.Event()

        async def wait(wire: Wire) -> None:
            await gate.wait()
            await json_answer({})(wire)

        request = post(chat(), "/v1/chat/completions", "X-Request-Id: same")
        async with FakeEngine() as engine, serving(engine) as served:
            engine.script = wait
            async with RawClient(served.port) as one, RawClient(served.port) as two:
                one.send(request)
                first = await engine.request(1)
                two.send(request)
                await engine.request(2)
                one.close()
                await first.peer_closed.wait()
                gate.set()
                assert (await two.answer()).status == 200

    run(test())


# What the gateway answers by itself.


def test_health_ready_and_models():
    """A-12, A-14: from the gateway's own view, at once; ids may hold slashes; HEAD has no body."""

    async def test():
        async with FakeEngine() as engine, serving(engine, models=("org/model-1", "b")) as served:
            assert (await ask(served.port, get("/health"))).status == 200
            assert (await ask(served.port, get("/ready"))).status == 200
            listed = (await ask(served.port, get("/v1/models"))).json()
            assert listed["object"] == "list"
            assert [(card["id"], card["object"], card["max_model_len"]) for card in listed["data"]] == [
                ("b", "model", 8192),
                ("org/model-1", "model", 8192),
            ]
            for path in ("/v1/models/org/model-1", "/v1/models/org%2Fmodel-1?x=1"):
                assert (await ask(served.port, get(path))).json()["id"] == "org/model-1"
            missing = await ask(served.port, get("/v1/models/none"))
            assert (missing.status, missing.code) == (404, "model_not_found")
            assert (await ask(served.port, get("/health", method="HEAD"))).headers["content-length"] == "15"
            assert (await ask(served.port, get("/health", method="POST"))).headers["allow"] == "GET, HEAD"
            assert engine.seen == 0

    run(test())


def test_without_an_instance_it_says_so():
    async def test():
        async with serving() as served:
            for request in (get("/health"), get("/ready")):
                answer = await ask(served.port, request)
                assert answer.status == 503
                assert "retry-after" in answer.headers
            assert (await ask(served.port, get("/v1/models"))).json()["data"] == []

    run(test())


REFUSALS = {
    "unknown path": (get("/v2/nothing"), 404, "unknown_path"),
    "admin path of an engine": (post(b"{}", "/reset_prefix_cache"), 404, "unknown_path"),
    "engine metrics": (get("/metrics"), 404, "unknown_path"),
    "wrong method": (get("/v1/chat/completions"), 405, "method_not_allowed"),
    "preflight": (get("/v1/chat/completions", method="OPTIONS"), 405, "method_not_allowed"),
    "unknown model": (post(b'{"model":"x","messages":[]}'), 404, "model_not_found"),
    "no model": (post(b'{"messages":[]}'), 400, "missing_model"),
    "empty": (post(b""), 400, "empty_body"),
    "cut JSON": (post(b'{"model":"m","mess'), 400, "invalid_json"),
    "array": (post(b"[1]"), 400, "invalid_body"),
    "deep": (post(b'{"model":"m","x":' + b"[" * 100_000), 400, "invalid_json"),
    "repeated key": (post(b'{"model":"m","model":"n","messages":[]}'), 400, "duplicate_key"),
    "SLO": (post(chat(), "/v1/chat/completions", "x-slo-ttft-ms: soon"), 400, "invalid_header"),
    "negative SLO": (post(chat(), "/v1/chat/completions", "x-slo-tpot-ms: -1"), 400, "invalid_header"),
    "sheddable": (post(chat(), "/v1/chat/completions", "x-isochrone-sheddable: perhaps"), 400, "invalid_header"),
    "too long": (post(chat(content="word " * 60_000)), 400, "context_length_exceeded"),
    "form": (post(b"model=m", content_type="application/x-www-form-urlencoded"), 415, "unsupported_media_type"),
    "expectation": (post(chat(), "/v1/chat/completions", "Expect: miracles"), 417, "expectation_failed"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_refusals_have_one_shape_and_reach_no_engine(refusal: str):
    """A-16, A-07, X-07: OpenAI's shape, status as told, an id in a header, a record; the connection goes on."""
    request, status, code = REFUSALS[refusal]

    async def test():
        async with FakeEngine() as engine, serving(engine) as served, RawClient(served.port) as client:
            client.send(request)
            answer = await client.answer()
            assert (answer.status, answer.code) == (status, code)
            assert answer.headers["content-type"] == "application/json"
            assert len(answer.headers["x-isochrone-request-id"]) == 16
            assert engine.seen == 0
            assert [(record.status, record.reason) for record in served.records] == [(status, code)]
            if status != 417:
                client.send(get("/health"))
                assert (await client.answer()).status == 200
            served.assert_nothing_left()

    run(test())


def test_anthropic_clients_get_errors_of_their_shape():
    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            answer = await ask(served.port, post(b"{", "/v1/messages"))
            assert answer.status == 400
            assert answer.json()["type"] == "error"
            answer = await ask(served.port, post(b'{"model":"x","messages":[]}', "/v1/messages"))
            assert answer.json()["error"]["type"] == "not_found_error"

    run(test())


# Bodies and heads that are too large, too slow, or no HTTP.

LIMIT = 100_000


def sized(size: int) -> bytes:
    body = chat(content="")
    return body.replace(b'"content": ""', b'"content": "' + b"x" * (size - len(body)) + b'"')


@pytest.mark.parametrize(("size", "status"), [(32_769, 200), (LIMIT - 1, 200), (LIMIT, 200), (LIMIT + 1, 413)])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_the_body_limit(size: int, status: int, framing: str):
    """A-05."""
    body = sized(size)
    assert len(body) == size
    request = post(body)
    if framing == "chunked":
        pieces = b"".join(chunk(body[at : at + 5000]) for at in range(0, len(body), 5000))
        request = b"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + pieces + END

    async def test():
        limits = quick(body_bytes_max=LIMIT, body_s_max=5.0, linger_s_max=2.0)
        async with FakeEngine() as engine, serving(engine, limits=limits, longest=None) as served:
            answer = await ask(served.port, request)
            if status == 413:
                assert answer.code == "body_too_large"
                assert str(LIMIT) in answer.json()["error"]["message"]
                assert engine.seen == 0
                assert served.gateway.reception.refusals == {"body_too_large": 1}
                assert served.records[-1].status == 413
            else:
                assert answer.status == 200
                assert engine.requests[0].body == body
            served.assert_nothing_left()

    run(test())


def test_a_declared_length_over_the_limit_is_refused_before_the_body():
    async def test():
        async with FakeEngine() as engine, serving(engine) as served, RawClient(served.port) as client:
            client.send(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n")
            answer = await client.answer()
            assert (answer.status, answer.code) == (413, "body_too_large")
            assert await client.at_end()

    run(test())


def test_all_bodies_together_are_bounded():
    async def test():
        limits = quick(bodies_bytes_max=50_000, body_s_max=5.0)
        async with FakeEngine() as engine, serving(engine, limits=limits) as served:
            engine.script = never
            async with RawClient(served.port) as one, RawClient(served.port) as two:
                one.send(post(sized(30_000)))
                await engine.request(1)
                two.send(post(sized(30_000)))
                answer = await two.answer()
                assert (answer.status, answer.code) == (503, "bodies_full")
                assert "retry-after" in answer.headers
            await served.until_idle()
            assert (await ask(served.port, get("/health"))).status == 200
            served.assert_nothing_left()

    run(test())


@pytest.mark.parametrize("large", ["many lines", "one long line", "long target", "large head in one read"])
def test_the_head_limit(large: str):
    lines = {
        "many lines": "".join(f"X-{number}: 1\r\n" for number in range(200)),
        "one long line": "X: " + "y" * 70_000 + "\r\n",
        "long target": "",
        "large head in one read": "".join(f"X-{number}: {'y' * 1000}\r\n" for number in range(100)),
    }[large]
    target = "/v1/chat/completions" + ("?" + "a" * 70_000 if large == "long target" else "")

    async def test():
        async with FakeEngine() as engine, serving(engine) as served, RawClient(served.port) as client:
            client.send(f"POST {target} HTTP/1.1\r\n{lines}Content-Length: 2\r\n\r\n{{}}".encode())
            answer = await client.answer()
            assert (answer.status, answer.code) == (431, "head_too_large")
            assert await client.at_end()
            assert engine.seen == 0

    run(test())


@pytest.mark.parametrize(
    ("sent", "limit"),
    [(b"POST /v1/cha", "head_s_max"), (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\nab", "body_s_max")],
)
def test_slow_senders_are_told_and_closed(sent: bytes, limit: str):
    async def test():
        async with FakeEngine() as engine, serving(engine) as served, RawClient(served.port) as client:
            client.send(sent)
            answer = await client.answer()
            assert (answer.status, answer.code) == (408, "request_timeout")
            assert limit in answer.json()["error"]["message"]
            assert await client.at_end()
            assert engine.seen == 0
            served.assert_nothing_left()

    run(test())


def test_an_idle_connection_is_closed_without_a_word():
    async def test():
        async with serving() as served, RawClient(served.port) as client:
            client.send(get("/health"))
            await client.answer()
            assert await client.at_end()
            assert not served.gateway.connections

    run(test())


def test_expect_100_continue():
    """A-10: 100 where the request will be read; the final answer and no 100 where it will not."""

    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            body = chat()
            request = post(body, "/v1/chat/completions", "Expect: 100-continue")
            request_head = request[: -len(body)]
            async with RawClient(served.port) as client:
                client.send(request_head)
                assert (await client.answer()).status == 100
                client.send(body)
                assert (await client.answer()).status == 200
                assert "expect" not in engine.requests[0].headers
            refused = {
                413: request_head.replace(b"Content-Length: ", b"Content-Length: 999999999"),
                404: request_head.replace(b"/v1/chat/completions", b"/v1/nothing"),
                405: request_head.replace(b"POST", b"PUT"),
            }
            for status, sent in refused.items():
                assert (await ask(served.port, sent)).status == status

    run(test())


SMUGGLING = {
    "both framings": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both, the other way round": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
    "a list of lengths": b"Content-Length: 2, 3\r\n\r\n{}x",
    "a negative length": b"Content-Length: -1\r\n\r\n",
    "a length with a sign": b"Content-Length: +2\r\n\r\n{}",
    "chunked in disguise": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "an unknown coding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": b"Content-Length : 2\r\n\r\n{}",
    "a folded line": b"X: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
    "a bare line feed": b"X: a\nContent-Length: 2\r\n\r\n{}",
    "a chunk size that is none": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a chunk size too large": b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
}


@pytest.mark.parametrize("smuggling", SMUGGLING)
def test_doubtful_framing_is_refused_and_the_connection_closed(smuggling: str):
    """A-11: nothing is forwarded, nothing after it is read."""

    async def test():
        async with FakeEngine() as engine, serving(engine) as served, RawClient(served.port) as client:
            client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + SMUGGLING[smuggling] + post(chat()))
            answer = await client.answer()
            assert (answer.status, answer.code) == (400, "malformed_http")
            assert await client.at_end()
            assert engine.seen == 0
            served.assert_nothing_left()

    run(test())


def test_an_offered_upgrade_is_ignored():
    """Java's HTTP client offers h2c with its first request, body and all."""

    async def test():
        async with FakeEngine() as engine, serving(engine) as served, RawClient(served.port) as client:
            lines = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA")
            client.send(post(chat(), "/v1/chat/completions", *lines))
            assert (await client.answer()).status == 200
            assert engine.requests[0].body == chat()
            assert not {"upgrade", "http2-settings", "connection"} & set(engine.requests[0].headers)
            client.send(get("/health"))
            assert (await client.answer()).status == 200
            client.send(b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await client.answer()).status == 405

    run(test())


# Several requests at once, slow readers.


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
