"""Who comes in at the gateway's door, and what they may hear of, over raw bytes. Cases Q-03, A-16, X-07."""

import logging

import openai
import pytest

from isochrone.access.keys import digest_of
from isochrone.config.driver import Link
from tests.support.fake_engine import FakeEngine, json_answer
from tests.support.guarded import GOOD, USAGE, bearer, guarded, tenant
from tests.support.raw_client import RawClient, ask, chat, get, post
from tests.support.running import join, run, serving


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
