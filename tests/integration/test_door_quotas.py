"""How much a tenant may use, and what is left however a request ends, over raw bytes. Cases Q-01, Q-02, A-08, A-16."""

import asyncio

import pytest

from isochrone.cluster.cluster import HANDLERS
from isochrone.nouns.events import Ended
from tests.support.fake_engine import SSE_HEAD, FakeEngine, Wire, chunk, json_answer, sse_answer
from tests.support.guarded import GOOD, USAGE, bearer, guarded, stream, tenant, tokens_in
from tests.support.raw_client import RawClient, ask, chat, post
from tests.support.running import Served, run


def test_headers_say_where_a_client_stands() -> None:
    async def test() -> None:
        tenants = tenant("acme", requests_per_minute=10, tokens_per_minute=1000)
        async with FakeEngine() as engine, guarded(engine, tenants=tenants) as served:
            engine.script = json_answer({"choices": [], "usage": USAGE})
            request = post(chat(max_tokens=200), "/v1/chat/completions", GOOD)
            first, second = await ask(served.port, request), await ask(served.port, request)
            for name, limit in (("requests", 10), ("tokens", 1000)):
                assert first.headers[f"x-ratelimit-limit-{name}"] == str(limit)
            assert first.headers["x-ratelimit-remaining-requests"] == "9"
            assert first.headers["x-ratelimit-reset-requests"] == "6s"
            assert 700 < int(first.headers["x-ratelimit-remaining-tokens"]) < 800
            assert 600 < int(second.headers["x-ratelimit-remaining-tokens"]) < 700  # 101 were used, the rest given back
            served.assert_nothing_left()

    run(test())


@pytest.mark.parametrize(
    ("limits", "code", "kind"),
    [
        ({"requests_per_minute": 1}, "rate_limit_exceeded", "requests"),
        ({"tokens_per_minute": 100}, "rate_limit_exceeded", "tokens"),
        ({"concurrent_requests": 1}, "concurrency_limit_exceeded", "requests"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_a08_a16_refusals_say_when_to_come_back(limits: dict[str, int], code: str, kind: str, streamed: bool) -> None:
    async def test() -> None:
        async with FakeEngine() as engine, guarded(engine, tenants=tenant("small", **limits)) as served:
            gate = asyncio.Event()

            async def script(wire: Wire) -> None:
                await gate.wait()
                await json_answer({"choices": []})(wire)

            engine.script = script
            request = post(chat(max_tokens=90, stream=streamed), "/v1/chat/completions", bearer("iso-small"))
            running = asyncio.create_task(ask(served.port, request))
            await engine.request(1)
            refused = await ask(served.port, request)
            assert (refused.status, refused.code) == (429, code)
            error = refused.json()["error"]
            assert error["type"] == kind
            assert "'small'" in error["message"]
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert refused.headers["x-isochrone-request-id"]
            gate.set()
            assert (await running).status == 200
            assert len(engine.requests) == 1
            served.assert_nothing_left()

    run(test())


def test_a08_an_engines_own_retry_after_passes_unchanged() -> None:
    async def test() -> None:
        tenants = tenant("acme", requests_per_minute=10)
        async with FakeEngine() as engine, guarded(engine, tenants=tenants) as served:
            for value in ("30", "Wed, 21 Oct 2026 07:28:00 GMT"):
                engine.script = json_answer({"error": "busy"}, 429, f"retry-after: {value}")
                answer = await ask(served.port, post(chat(), "/v1/chat/completions", GOOD))
                assert (answer.status, answer.headers["retry-after"]) == (429, value)
                assert answer.headers["x-ratelimit-limit-requests"] == "10"

    run(test())


def test_q02_two_hundred_at_once_do_not_pass() -> None:
    async def test() -> None:
        async with FakeEngine() as engine, guarded(engine, tenants=tenant("small", tokens_per_minute=1000)) as served:
            engine.script = json_answer({"choices": [], "usage": USAGE})
            request = post(chat(max_tokens=100), "/v1/chat/completions", bearer("iso-small"))
            answers = await asyncio.gather(*(ask(served.port, request) for _ in range(200)))
            passed = [answer for answer in answers if answer.status == 200]
            assert 0.8 * 1000 <= 101 * len(passed) <= 1.1 * 1000
            assert {answer.status for answer in answers} == {200, 429}
            served.assert_nothing_left()

    run(test())


@pytest.mark.parametrize("how", ["usage asked for", "usage injected", "no usage", "cut half way"])
def test_q01_streams_count(how: str) -> None:
    """Limit 1000 a minute, 20 streams of 200 tokens one after the other."""

    async def test() -> None:
        async with FakeEngine() as engine, guarded(engine, tenants=tenant("small", tokens_per_minute=1000)) as served:
            engine.script = sse_answer(stream(200, usage=how != "no usage"))
            options = {"stream_options": {"include_usage": True}} if how == "usage asked for" else {}
            if how == "cut half way":

                async def script(wire: Wire) -> None:
                    wire.send(SSE_HEAD + b"".join(chunk(one) for one in stream(200)[:100]))
                    await wire.request.peer_closed.wait()

                engine.script = script
            body = chat(stream=True, max_tokens=200, **options)
            for _ in range(20):
                async with RawClient(served.port) as client:
                    client.send(post(body, "/v1/chat/completions", bearer("iso-small")))
                    if how != "cut half way":
                        await client.answer()
                    elif "200 OK" in await client.head():
                        await tokens_in(client, 100)
                        client.reset()
                await served.until_idle()
            ran = [record for record in served.records if record.tries]
            assert len(ran) < 20 == len(served.records)
            assert {record.reason for record in served.records if not record.tries} == {"rate_limit_exceeded"}
            used = sum((one.prompt_tokens or one.prompt_tokens_estimate) + (one.output_tokens or 0) for one in ran)
            assert 800 <= used <= 1100
            served.assert_nothing_left()

    run(test())


def remaining(served: Served) -> tuple[int, int]:
    """Requests and tokens of tenant small that are left."""
    assert served.gateway.door is not None
    account = served.gateway.door.quotas.accounts["small"]
    assert account.requests is not None
    assert account.tokens is not None
    return account.requests.remaining, account.tokens.remaining


LIMITS = {"requests_per_minute": 1, "tokens_per_minute": 1000, "concurrent_requests": 1}
"""Refills of a test's time do not show at one request a minute."""


async def _reset(wire: Wire) -> None:
    wire.reset()


@pytest.mark.parametrize(
    ("script", "requests_left", "used"),
    [
        (json_answer({"choices": [], "usage": USAGE}), 0, 101),
        (json_answer({"error": {"message": "no"}}, 400), 0, 0),
        (json_answer({"error": {"message": "no"}}, 500), 0, 0),
        (json_answer({"error": {"message": "no"}}, 503), 0, 0),
        (_reset, 0, 0),
    ],
    ids=["done", "rejected", "failed", "busy", "lost"],
)
def test_what_is_left_after_each_end(script: object, requests_left: int, used: int) -> None:
    async def test() -> None:
        async with FakeEngine() as engine, guarded(engine, tenants=tenant("small", **LIMITS)) as served:
            engine.script = script  # type: ignore[assignment]
            await ask(served.port, post(chat(max_tokens=300), "/v1/chat/completions", bearer("iso-small")))
            await served.until_idle()
            left = remaining(served)
            assert left[0] == requests_left
            assert left[1] == pytest.approx(1000 - used, abs=8)  # some milliseconds' refill
            served.assert_nothing_left()

    run(test())


def test_a_request_that_nobody_could_take_costs_nothing() -> None:
    async def test() -> None:
        async with guarded(tenants=tenant("small", **LIMITS)) as served:
            request = post(chat(max_tokens=300), "/v1/chat/completions", bearer("iso-small"))
            for _ in range(3):
                answer = await ask(served.port, request)
                assert answer.status == 404
            assert remaining(served) == (1, 1000)
            served.assert_nothing_left()

    run(test())


def test_a_client_that_leaves_gives_its_place_back() -> None:
    async def test() -> None:
        async with FakeEngine() as engine, guarded(engine, tenants=tenant("small", **LIMITS)) as served:

            async def script(wire: Wire) -> None:
                await wire.request.peer_closed.wait()

            engine.script = script
            async with RawClient(served.port) as client:
                client.send(post(chat(max_tokens=300), "/v1/chat/completions", bearer("iso-small")))
                await engine.request(1)
                client.reset()
                await served.until_idle()
            assert remaining(served)[0] == 0
            served.assert_nothing_left()

    run(test())


def test_a_fault_of_our_own_leaves_nothing_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("a bug")

    async def test() -> None:
        async with FakeEngine() as engine, guarded(engine, tenants=tenant("small", **LIMITS)) as served:
            monkeypatch.setitem(HANDLERS, Ended, broken)
            answer = await ask(served.port, post(chat(), "/v1/chat/completions", bearer("iso-small")))
            assert answer.status == 200
            assert served.gateway.brain.faults == 1
            assert served.gateway.door is not None
            assert len(served.gateway.door.quotas) == 0

    run(test())


def test_one_id_at_a_time() -> None:
    """Pipelined requests of the same id: each has a reservation of its own."""

    async def test() -> None:
        tenants = tenant("acme", requests_per_minute=100)
        async with FakeEngine() as engine, guarded(engine, tenants=tenants) as served, RawClient(served.port) as client:
            client.send(3 * post(chat(), "/v1/chat/completions", GOOD, "x-request-id: same"))
            for _ in range(3):
                assert (await client.answer()).status == 200
            await served.until_idle()
            served.assert_nothing_left()
            assert served.gateway.door is not None
            account = served.gateway.door.quotas.accounts["acme"]
            assert account.requests is not None
            assert account.requests.remaining == 97

    run(test())


def test_a_tenants_priority_and_route_reach_the_core() -> None:
    async def test() -> None:
        tenants = tenant("acme", priority=3, route="gold")
        async with FakeEngine() as engine, guarded(engine, tenants=tenants) as served:
            seen = []
            handle = served.gateway.cluster.handle
            served.gateway.brain.cluster.handle = lambda now, e: (seen.append(e), handle(now, e))[1]  # type: ignore[method-assign]
            await ask(served.port, post(chat(), "/v1/chat/completions", GOOD))
            request = seen[0].request
            assert (request.tenant, request.key, request.priority, request.route) == ("acme", "key-good", 3, "gold")

    run(test())
