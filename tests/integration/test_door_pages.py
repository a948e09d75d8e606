"""Web pages: preflights and CORS headers, over raw bytes. Case A-09."""

from isochrone.config.driver import Access
from tests.support.fake_engine import FakeEngine, json_answer
from tests.support.guarded import GOOD, bearer, guarded
from tests.support.raw_client import Answer, ask, chat, get, post
from tests.support.running import run, serving

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
