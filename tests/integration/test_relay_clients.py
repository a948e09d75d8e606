"""Clients that leave, and what the gateway answers by itself (A-07, A-16, C-01, C-05, X-07)."""

import asyncio

import pytest

from tests.support.fake_engine import SSE_HEAD, FakeEngine, Wire, chunk, delta, json_answer
from tests.support.raw_client import RawClient, ask, chat, get, post
from tests.support.running import run, serving

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
