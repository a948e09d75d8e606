"""`x-request-timeout-ms`: the client's own limit for its whole request; and what refusals say about trying again."""

import asyncio
import json

import pytest

from isochrone.nouns.settings import Settings
from tests.support.fake_engine import SSE_HEAD, FakeEngine, Wire, chunk, delta, json_answer, sse_answer
from tests.support.raw_client import ask, chat, post
from tests.support.running import run, serving

LIMIT = "x-request-timeout-ms: 80"


async def silence(wire: Wire) -> None:
    await wire.request.peer_closed.wait()


async def tokens_for_ever(wire: Wire) -> None:
    wire.send(SSE_HEAD)
    while not wire.request.peer_closed.is_set():
        wire.send(chunk(delta("one")))
        await asyncio.sleep(0.005)


def test_an_answer_that_is_not_there_in_time_is_a_504_that_is_not_to_be_tried_again():
    async def test():
        async with FakeEngine() as engine, FakeEngine() as other, serving(engine, other) as served:
            engine.script = other.script = silence
            answer = await ask(served.port, post(chat(), "/v1/chat/completions", LIMIT))
            assert (answer.status, answer.code) == (504, "deadline_exceeded")
            assert "0.08 s" in answer.json()["error"]["message"]
            assert answer.headers["x-should-retry"] == "false"
            assert answer.headers["x-isochrone-attempts"] == "1"
            (received,) = engine.requests + other.requests
            assert "x-request-timeout-ms" not in received.headers
            await received.peer_closed.wait()
            assert served.records[-1].reason == "deadline_exceeded"
            served.assert_nothing_left()

    run(test())


def test_a_stream_ends_at_the_limit_with_an_error_event_and_its_engine_stops():
    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            engine.script = tokens_for_ever
            answer = await ask(served.port, post(chat(stream=True), "/v1/chat/completions", LIMIT))
            assert answer.status == 200
            assert answer.body.startswith(delta("one"))
            last = json.loads(answer.body.strip().rpartition(b"data: ")[2])
            assert last["error"]["code"] == "deadline_exceeded"
            assert b"[DONE]" not in answer.body
            await engine.requests[0].peer_closed.wait()
            served.assert_nothing_left()

    run(test())


def test_an_answer_within_the_limit_is_what_it_was():
    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            engine.script = sse_answer([delta("one"), b"data: [DONE]\n\n"])
            answer = await ask(
                served.port, post(chat(stream=True), "/v1/chat/completions", "x-request-timeout-ms: 60000")
            )
            assert answer.body.endswith(b"[DONE]\n\n")

    run(test())


@pytest.mark.parametrize("value", ["0", "-5", "soon", "nan", "inf"])
def test_an_odd_limit_is_refused(value: str):
    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            answer = await ask(served.port, post(chat(), "/v1/chat/completions", f"x-request-timeout-ms: {value}"))
            assert (answer.status, answer.code) == (400, "invalid_header")
            assert answer.headers["x-should-retry"] == "false"
            assert not engine.requests

    run(test())


def test_refusals_say_whether_to_try_again():
    settings = Settings(policy="round-robin", queue_requests_max=0)

    async def test():
        async with FakeEngine() as engine, serving(engine, settings=settings) as served:
            unknown = await ask(served.port, post(chat(model="other")))
            assert (unknown.status, unknown.headers["x-should-retry"]) == (404, "false")
            engine.gone = True
            engine.cut_all()
            lost = await ask(served.port, post(chat()))
            assert (lost.status, lost.headers["x-should-retry"]) == (502, "true")
            assert int(lost.headers["retry-after"]) >= 1
            engine.gone = False
            engine.script = json_answer({"error": {"message": "no"}}, 400)
            theirs = await ask(served.port, post(chat()))
            assert theirs.status == 400
            assert "x-should-retry" not in theirs.headers, "an engine's own answer is not ours to comment"

    run(test())
