"""Keys, tenants and quotas at the gateway's door, over raw bytes. Cases Q-01 to Q-03, A-08, A-09, A-16, X-07."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest

from isochrone.access.keys import StoredKey, digest_of
from isochrone.access.tenants import Tenant
from isochrone.cluster.cluster import HANDLERS
from isochrone.config.driver import Access, Link
from isochrone.nouns.events import Ended
from isochrone.nouns.settings import Settings
from tests.support.fake_engine import DONE, SSE_HEAD, FakeEngine, Wire, chunk, delta, event, json_answer, sse_answer
from tests.support.raw_client import Answer, RawClient, ask, chat, get, post
from tests.support.running import Served, join, run, serving

KEYS = {
    "iso-good": StoredKey(id="key-good", digest=digest_of(b"iso-good"), tenant="acme", created_s=0),
    "iso-expired": StoredKey(id="key-old", digest=digest_of(b"iso-expired"), tenant="acme", created_s=0, expires_s=1),
    "iso-small": StoredKey(id="key-small", digest=digest_of(b"iso-small"), tenant="small", created_s=0),
    "iso-only-a": StoredKey(id="key-a", digest=digest_of(b"iso-only-a"), tenant="only-a", created_s=0),
}
GOOD = "authorization: Bearer iso-good"
USAGE = {"prompt_tokens": 1, "completion_tokens": 100, "total_tokens": 101}


def tenant(name: str, **limits: object) -> dict[str, Tenant]:
    return {name: Tenant(name=name, **limits)}  # type: ignore[arg-type]


@asynccontextmanager
async def guarded(
    *engines: FakeEngine,
    tenants: dict[str, Tenant] | None = None,
    anonymous: bool = False,
    keys: bool = True,
    origins: tuple[str, ...] = (),
    models: tuple[str, ...] = ("m",),
    settings: Settings | None = None,
) -> AsyncIterator[Served]:
    access = Access(keys=keys, anonymous=anonymous, tenants=tenants or {}, origins=origins)
    async with serving(*engines, access=access, models=models, settings=settings) as served:
        assert served.gateway.door is not None
        served.gateway.door.ring.update(KEYS.values())
        yield served


def bearer(key: str) -> str:
    return f"authorization: Bearer {key}"


def stream(tokens: int, usage: bool = False) -> list[bytes]:
    """A chat stream of so many tokens."""
    events = [delta("x", "length" if n == tokens - 1 else None) for n in range(tokens)]
    if usage:
        events.append(event({"id": "1", "choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": tokens}}))
    return [*events, DONE]


async def tokens_in(client: RawClient, count: int) -> None:
    """Read until so many tokens have come."""
    read = b""
    while read.count(b'"content":"x"') < count:
        read += await client.reader.read(65536)


# -- Who is it --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", [GOOD, "Authorization: bearer iso-good", "x-api-key: iso-good", "X-Api-Key:  iso-good ", GOOD + " "]
)
def test_a_key_opens_and_stays_here(line: str) -> None:
    async def test() -> None:
        async with FakeEngine() as engine, guarded(engine) as served:
            answer = await ask(served.port, post(chat(), "/v1/chat/completions", line))
            assert answer.status == 200
            assert b"iso-good" not in engine.requests[0].head
            assert not {"authorization", "x-api-key"} & engine.requests[0].headers.keys()
            (record,) = served.records
            assert (record.tenant, record.key) == ("acme", "key-good")
            served.assert_nothing_left()

    run(test())


def test_instances_own_credentials_are_what_an_engine_sees() -> None:
    async def test() -> None:
        async with FakeEngine() as engine, guarded() as served:
            join(served.gateway, engine.id, engine.url, link=Link(bearer="engine-secret"))
            assert (await ask(served.port, post(chat(), "/v1/chat/completions", "x-api-key: iso-good"))).status == 200
            assert engine.requests[0].headers["authorization"] == "Bearer engine-secret"
            assert b"iso-good" not in engine.requests[0].head

    run(test())


def test_without_keys_the_clients_credentials_pass_as_they_did() -> None:
    async def test() -> None:
        async with FakeEngine() as engine, serving(engine) as served:
            for line in ("authorization: Bearer abc", "x-api-key: abc"):
                assert (await ask(served.port, post(chat(), "/v1/chat/completions", line))).status == 200
            assert engine.requests[0].headers["authorization"] == "Bearer abc"
            assert engine.requests[1].headers["x-api-key"] == "abc"

    run(test())


REFUSED = [
    ("none", [], ""),
    ("wrong", [bearer("iso-wr0ngkey")], "iso-wr0ngkey"),
    ("expired", [bearer("iso-expired")], "iso-expired"),
    ("wrong x-api-key", ["x-api-key: iso-wr0ngkey"], "iso-wr0ngkey"),
    ("another scheme", ["authorization: Basic iso-good"], "iso-good"),
    ("no scheme", ["authorization: iso-good"], "iso-good"),
    ("odd bytes", ["authorization: Bearer \xff\xfeiso-wr0ng\x80"], "iso-wr0ng"),
    ("too long", [bearer("iso-" + "k" * 9000)], "k" * 100),
    ("like a token", [bearer("eyJhbGciOiJub25lIn0.e30.")], "eyJhbGci"),
    ("wrong before right", [bearer("iso-wr0ngkey"), "x-api-key: iso-good"], "iso-wr0ngkey"),
]


@pytest.mark.parametrize(
    ("lines", "secret"), [(lines, secret) for _, lines, secret in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_q03_refusals_are_short_alike_and_tell_nothing(
    lines: list[str], secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def test() -> None:
        async with FakeEngine() as engine, guarded(engine) as served:
            request = post(chat(), "/v1/chat/completions").partition(b"\r\n\r\n")
            head = request[0] + b"".join(b"\r\n" + line.encode("latin-1") for line in lines)
            answer = await ask(served.port, head + b"\r\n\r\n" + request[2])
            assert answer.status == 401
            assert answer.code == ("invalid_api_key" if lines else "missing_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["x-isochrone-request-id"]
            if lines:
                assert answer.json()["error"]["message"] == "The API key is not valid."
            shown = str(answer) + caplog.text + str(served.records) + str(served.gateway.reception.refusals)
            assert not secret or secret not in shown
            if secret:
                assert digest_of(secret.encode("latin-1")).hex() not in shown
            assert engine.requests == []
            assert [(one.tenant, one.key, one.status) for one in served.records] == [("anonymous", "", 401)]
            served.assert_nothing_left()

    run(test())


def test_q03_a_key_in_the_query_is_no_key() -> None:
    async def test() -> None:
        async with FakeEngine() as engine, guarded(engine) as served:
            answer = await ask(served.port, post(chat(), "/v1/chat/completions?api_key=iso-good"))
            assert (answer.status, answer.code) == (401, "missing_api_key")
            assert b"iso-good" not in answer.body
            assert engine.requests == []

    run(test())


def test_q03_another_tenants_models_are_neither_usable_nor_named() -> None:
    async def test() -> None:
        tenants = tenant("only-a", models=("a*",))
        async with FakeEngine() as engine, guarded(engine, tenants=tenants, models=("a1", "secret-b")) as served:
            key = bearer("iso-only-a")
            refused = await ask(served.port, post(chat(model="secret-b"), "/v1/chat/completions", key))
            assert (refused.status, refused.code) == (403, "model_not_allowed")
            assert refused.json()["error"]["param"] == "model"
            assert b"a1" not in refused.body
            unknown = await ask(served.port, post(chat(model="a2"), "/v1/chat/completions", key))
            assert (unknown.status, unknown.code) == (404, "model_not_found")
            assert b"secret-b" not in unknown.body
            none = await ask(served.port, post(b'{"prompt": "x"}', "/v1/completions", key))
            assert none.status == 400
            assert b"secret-b" not in none.body
            assert (await ask(served.port, post(chat(model="a1"), "/v1/chat/completions", key))).status == 200
            listed = (await ask(served.port, get("/v1/models", key))).json()["data"]
            assert [card["id"] for card in listed] == ["a1"]
            assert (await ask(served.port, get("/v1/models/secret-b", key))).status == 404
            everything = (await ask(served.port, get("/v1/models", GOOD))).json()["data"]
            assert [card["id"] for card in everything] == ["a1", "secret-b"]
            served.assert_nothing_left()

    run(test())


def test_what_needs_a_key_and_what_does_not() -> None:
    async def test() -> None:
        async with FakeEngine() as engine, guarded(engine) as served:
            for path, status in (("/health", 200), ("/ready", 200), ("/v1/models", 401), ("/v1/models/m", 401)):
                assert (await ask(served.port, get(path))).status == status
            assert (await ask(served.port, get("/v1/models", GOOD))).status == 200
            for path in ("/metrics", "/reset_prefix_cache", "/admin/usage"):  # not there, with a key or without
                assert (await ask(served.port, get(path))).status == 404
                assert (await ask(served.port, get(path, GOOD))).status == 404
            assert (await ask(served.port, get("/v1/chat/completions"))).status == 405

    run(test())


def test_anonymous_callers_where_they_are_let_in() -> None:
    async def test() -> None:
        tenants = tenant("anonymous", requests_per_minute=2)
        async with FakeEngine() as engine, guarded(engine, tenants=tenants, anonymous=True) as served:
            statuses = [(await ask(served.port, post(chat()))).status for _ in range(3)]
            assert statuses == [200, 200, 429]
            assert (await ask(served.port, post(chat(), "/v1/chat/completions", GOOD))).status == 200
            wrong = await ask(served.port, post(chat(), "/v1/chat/completions", bearer("iso-wrong")))
            assert wrong.status == 401  # a key that is shown must be right

    run(test())


def test_limits_without_keys() -> None:
    """Keys off, and a limit for everybody: credentials are the engine's business still."""

    async def test() -> None:
        tenants = tenant("anonymous", requests_per_minute=1)
        async with FakeEngine() as engine, guarded(engine, tenants=tenants, keys=False) as served:
            first = await ask(served.port, post(chat(), "/v1/chat/completions", bearer("theirs")))
            assert first.status == 200
            assert engine.requests[0].headers["authorization"] == "Bearer theirs"
            assert (await ask(served.port, post(chat()))).status == 429

    run(test())


def test_a_strangers_body_is_not_read() -> None:
    async def test() -> None:
        async with FakeEngine() as engine, guarded(engine) as served:
            for line in (
                "content-length: 20000000",
                "transfer-encoding: chunked",
                "content-length: 5\r\nexpect: 100-continue",
            ):
                async with RawClient(served.port) as client:
                    client.send(f"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\n{line}\r\n\r\n".encode())
                    answer = await client.answer()  # at once, and no 100 before it
                    assert (answer.status, answer.code) == (401, "missing_api_key")
                    assert await client.at_end()
            async with RawClient(served.port) as client:
                body = chat()
                client.send(
                    f"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\n{GOOD}\r\n"
                    f"content-length: {len(body)}\r\nexpect: 100-continue\r\n\r\n".encode()
                )
                assert (await client.answer()).status == 100
                client.send(body)
                assert (await client.answer()).status == 200
            served.assert_nothing_left()

    run(test())


def test_a_small_refused_request_keeps_its_connection() -> None:
    async def test() -> None:
        async with FakeEngine() as engine, guarded(engine) as served, RawClient(served.port) as client:
            client.send(post(chat()) + post(chat(), "/v1/chat/completions", GOOD))
            assert (await client.answer()).status == 401
            assert (await client.answer()).status == 200

    run(test())


def test_anthropics_dialect() -> None:
    async def test() -> None:
        tenants = tenant("small", requests_per_minute=1)
        async with FakeEngine() as engine, guarded(engine, tenants=tenants) as served:
            body = chat(max_tokens=5)
            kinds = []
            for line in ("x-api-key: iso-wrong", "x-api-key: iso-small", "x-api-key: iso-small"):
                answer = await ask(served.port, post(body, "/v1/messages", line))
                kinds.append((answer.status, answer.json().get("error", {}).get("type")))
            assert kinds == [(401, "authentication_error"), (200, None), (429, "rate_limit_error")]

    run(test())


# -- How much ---------------------------------------------------------------------------------------------------------


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


# -- However it ends --------------------------------------------------------------------------------------------------


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


# -- Web pages --------------------------------------------------------------------------------------------------------

PREFLIGHT = (
    "origin: https://app.example",
    "access-control-request-method: POST",
    "access-control-request-headers: authorization, content-type, x-stainless-lang",
)


def preflight(path: str, *lines: str) -> bytes:
    return get(path, *lines, method="OPTIONS")


def test_a09_preflights_with_cors_on() -> None:
    async def test() -> None:
        async with FakeEngine() as engine, guarded(engine, origins=("https://app.example", "https://*.dev")) as served:
            answer = await ask(served.port, preflight("/v1/chat/completions", *PREFLIGHT))
            assert (answer.status, answer.body) == (204, b"")
            assert "content-length" not in answer.headers
            assert answer.headers["access-control-allow-origin"] == "https://app.example"
            assert answer.headers["access-control-allow-headers"] == "authorization, content-type, x-stainless-lang"
            assert "POST" in answer.headers["access-control-allow-methods"]
            assert answer.headers["vary"] == "origin"
            wrong = await ask(served.port, get("/v1/models", PREFLIGHT[0], bearer("iso-wrong")))
            assert wrong.status == 401
            assert wrong.headers["access-control-allow-origin"] == "https://app.example"
            other = await ask(served.port, preflight("/v1/models", "origin: https://evil.example", *PREFLIGHT[1:]))
            assert other.status == 405
            assert "access-control-allow-origin" not in other.headers
            assert engine.seen == 0
            engine.script = json_answer({"choices": []}, 200, "access-control-allow-origin: *")
            served_answer = await ask(
                served.port, post(chat(), "/v1/chat/completions", GOOD, "origin: https://a.dev")
            )  # fmt: skip
            assert served_answer.headers["access-control-allow-origin"] == "https://a.dev"
            assert "x-ratelimit-remaining-tokens" in served_answer.headers["access-control-expose-headers"]
            assert "origin" not in engine.requests[0].headers

    run(test())


def test_a09_preflights_with_cors_off() -> None:
    async def test() -> None:
        async with FakeEngine() as engine, guarded(engine) as served:
            answer = await ask(served.port, preflight("/v1/chat/completions", *PREFLIGHT))
            assert (answer.status, answer.headers["allow"]) == (405, "POST")
            assert "access-control-allow-origin" not in answer.headers
            engine.script = json_answer({"choices": []}, 200, "access-control-allow-origin: *")
            passed = await ask(served.port, post(chat(), "/v1/chat/completions", GOOD, PREFLIGHT[0]))
            assert "access-control-allow-origin" not in passed.headers  # an engine does not decide who may ask us
            assert "origin" not in engine.requests[0].headers
            assert engine.seen == 1

    run(test())


def test_any_origin() -> None:
    async def test() -> None:
        async with FakeEngine() as engine, serving(engine, access=Access(origins=("*",))) as served:
            answer = await ask(served.port, preflight("/v1/chat/completions", *PREFLIGHT))
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (204, "*")
            odd = await ask(
                served.port, preflight("/v1/models", *PREFLIGHT[:2], 'access-control-request-headers: a"b')
            )  # fmt: skip
            assert "access-control-allow-headers" not in odd.headers
            stream_answer: Answer = await ask(
                served.port, post(chat(stream=True), "/v1/chat/completions", PREFLIGHT[0])
            )
            assert stream_answer.headers["access-control-allow-origin"] == "*"

    run(test())


def test_a16_the_openai_client_knows_our_refusals() -> None:
    """Its classes by status, and the code that it reads from the body."""

    async def test() -> None:
        tenants = {**tenant("only-a", models=("a",)), **tenant("small", requests_per_minute=1)}
        async with FakeEngine() as engine, guarded(engine, tenants=tenants) as served:

            async def caught(key: str) -> openai.APIStatusError | None:
                base = f"http://127.0.0.1:{served.port}/v1"
                async with openai.AsyncOpenAI(base_url=base, api_key=key, max_retries=0) as client:
                    try:
                        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
                    except openai.APIStatusError as error:
                        return error
                    return None

            engine.script = json_answer({"id": "1", "object": "chat.completion", "choices": [], "usage": USAGE})
            assert await caught("iso-small") is None
            found = [await caught(key) for key in ("iso-wrong", "iso-only-a", "iso-small")]
            assert [(type(error), error and error.code) for error in found] == [
                (openai.AuthenticationError, "invalid_api_key"),
                (openai.PermissionDeniedError, "model_not_allowed"),
                (openai.RateLimitError, "rate_limit_exceeded"),
            ]

    run(test())
