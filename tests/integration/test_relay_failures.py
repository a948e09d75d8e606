"""Instances that fail: what is tried elsewhere, what the client is told (cases F-01, F-12, F-13, S-04, A-08, T-03)."""

import asyncio
import json

import openai
import pytest

from isochrone.nouns.settings import Settings
from tests.support.fake_engine import (
    DONE,
    END,
    SSE_HEAD,
    FakeEngine,
    Wire,
    chunk,
    delta,
    event,
    head,
    json_answer,
    raw,
    sse_answer,
)
from tests.support.raw_client import RawClient, ask, chat, post
from tests.support.running import join, quick, run, serving

TOKENS = [delta("one"), delta(" two"), delta(" three")]
GOOD = sse_answer([*TOKENS, DONE])
RETRIES = Settings(policy="round-robin", retry_tokens_per_s=1e9, retry_tokens_max=1e9)
"""A retry budget that is never the reason."""


async def reset_at_once(wire: Wire) -> None:
    wire.reset()


async def close_at_once(wire: Wire) -> None:
    wire.close()


FAILING = {
    "reset before the head": reset_at_once,
    "closed before the head": close_at_once,
    "closed in the head": raw(b"HTTP/1.1 200 OK\r\ncontent-", fin=True),
    "closed after the head": raw(SSE_HEAD, fin=True),
    "503": json_answer({"error": {"message": "full"}}, 503, "retry-after: 30"),
    "429": json_answer({"error": {"message": "full"}}, 429, "retry-after: 30"),
    "500": json_answer({"error": {"message": "broken"}}, 500),
    "not HTTP": raw(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "two lengths": raw(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"),
    "endless head": raw(b"HTTP/1.1 200 OK\r\n" + b"x: yyyyyyyyyyyyyyyy\r\n" * 8000),
    "an upgrade nobody asked for": raw(head(101, "upgrade: websocket", "connection: upgrade")),
    "half a JSON answer": raw(head(200, "content-type: application/json", "content-length: 50") + b'{"a":', fin=True),
}


@pytest.mark.parametrize("failing", FAILING)
def test_before_the_first_byte_another_instance_is_tried(failing: str):
    async def test():
        async with FakeEngine() as bad, FakeEngine() as good, serving(bad, good, settings=RETRIES) as served:
            bad.script, good.script = FAILING[failing], GOOD
            answers = [await ask(served.port, post(chat(stream=True))) for _ in range(2)]
            for answer in answers:
                assert answer.status == 200
                assert answer.body == b"".join([*TOKENS, DONE])
                assert answer.headers["x-isochrone-instance"] == good.id
                assert "retry-after" not in answer.headers
            attempts = [answer.headers["x-isochrone-attempts"] for answer in answers]
            assert len(bad.requests) == attempts.count("2") > 0
            assert len(good.requests) == 2
            await served.until_idle()
            served.assert_nothing_left()

    run(test())


def test_a_refused_connect_goes_elsewhere():
    async def test():
        async with FakeEngine() as bad, FakeEngine() as good, serving(bad, good, settings=RETRIES) as served:
            bad.refuse()
            for _ in range(2):
                assert (await ask(served.port, post(chat()))).status == 200
            served.assert_nothing_left()
            assert len(good.requests) == 2

    run(test())


DELIVERED = {"the role": [event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})], "tokens": TOKENS}


@pytest.mark.parametrize("delivered", DELIVERED)
def test_after_the_first_byte_nobody_else_is_asked(delivered: str):
    """F-12: text that the client has is never repeated."""

    async def test():
        async with FakeEngine() as bad, FakeEngine() as good, serving(bad, good, settings=RETRIES) as served:
            bad.script = raw(SSE_HEAD, *(chunk(part) for part in DELIVERED[delivered]), fin=True)
            good.script = GOOD
            answers = [await ask(served.port, post(chat(stream=True))) for _ in range(2)]
            cut = next(answer for answer in answers if answer.headers["x-isochrone-instance"] == bad.id)
            assert cut.chunks[:-1] == DELIVERED[delivered]
            assert "error" in json.loads(cut.chunks[-1].removeprefix(b"data: "))
            assert len(good.requests) == 1
            await served.until_idle()
            served.assert_nothing_left()

    run(test())


async def three_then_reset(wire: Wire) -> None:
    for part in (SSE_HEAD, *(chunk(token) for token in TOKENS)):
        wire.send(part)
        await wire.turn(20)
    wire.reset()


BROKEN = {
    "closed": raw(SSE_HEAD, *(chunk(token) for token in TOKENS), fin=True),
    "reset": three_then_reset,
    "ended without its last event": raw(SSE_HEAD, *(chunk(token) for token in TOKENS), END),
    "garbage in the framing": raw(SSE_HEAD, *(chunk(token) for token in TOKENS), b"zz\r\n"),
    "closed in an event": raw(SSE_HEAD, *(chunk(token) for token in TOKENS), chunk(b"data: {"), fin=True),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_stream_never_looks_whole(broken: str):
    """S-04: the events that came, then one with an error; no [DONE]; the request counts as failed."""

    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            engine.script = BROKEN[broken]
            async with RawClient(served.port) as client:
                client.send(post(chat(stream=True)))
                answer = await client.answer()
                assert answer.chunks[:3] == TOKENS
                error = json.loads(answer.chunks[3].removeprefix(b"data: "))["error"]
                assert set(error) == {"message", "type", "param", "code"}
                assert error["code"] == "answer_broke_off"
                assert b"[DONE]" not in answer.body
                assert await client.at_end()
            await served.until_idle()
            served.assert_nothing_left()
            assert served.records[-1].outcome == "failed"

    run(test())


async def _collect(stream: openai.AsyncStream, said: list[str | None]) -> None:
    async for part in stream:
        said.append(part.choices[0].delta.content)  # noqa: PERF401  # what came before the error is wanted


@pytest.mark.parametrize("broken", ["closed", "reset", "ended without its last event"])
def test_the_official_client_raises_on_a_broken_stream(broken: str):
    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            engine.script = BROKEN[broken]
            url = f"http://127.0.0.1:{served.port}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
                said = []
                stream = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "hi"}], stream=True
                )
                with pytest.raises(openai.APIError):
                    await _collect(stream, said)
                assert said == ["one", " two", " three"]

    run(test())


def test_an_engine_that_tells_of_its_error_itself_is_passed_on():
    """vLLM ends a failed stream with an error event and [DONE]; the client gets just that, once."""
    told = [TOKENS[0], event({"error": {"message": "boom", "type": "x", "param": None, "code": 500}}), DONE]

    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            engine.script = sse_answer(told)
            answer = await ask(served.port, post(chat(stream=True)))
            assert answer.body == b"".join(told)
            await served.until_idle()
            assert served.records[-1].outcome == "failed"
            served.assert_nothing_left()

    run(test())


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
def test_a_clients_mistake_is_passed_on_and_tried_nowhere_else(status: int):
    """F-01."""
    refusal = {"error": {"message": "no", "type": "BadRequestError", "param": None, "code": status}}

    async def test():
        async with FakeEngine() as one, FakeEngine() as two, serving(one, two, settings=RETRIES) as served:
            one.script = two.script = json_answer(refusal, status)
            for _ in range(20):
                answer = await ask(served.port, post(chat()))
                assert (answer.status, answer.json()) == (status, refusal)
            assert len(one.requests) + len(two.requests) == 20
            one.script = two.script = json_answer({})
            assert (await ask(served.port, post(chat()))).status == 200

    run(test())


@pytest.mark.parametrize("retry_after", ["30", "Wed, 21 Oct 2026 07:28:00 GMT"])
@pytest.mark.parametrize("status", [429, 503])
def test_the_last_answer_of_a_full_cluster_is_passed_on_as_it_was(status: int, retry_after: str):
    """A-08."""
    full = {"error": {"message": "full", "type": "x", "param": None, "code": status}}

    async def test():
        async with FakeEngine() as one, FakeEngine() as two, serving(one, two, settings=RETRIES) as served:
            one.script = two.script = json_answer(full, status, f"retry-after: {retry_after}")
            answer = await ask(served.port, post(chat()))
            assert (answer.status, answer.json()) == (status, full)
            assert answer.headers["retry-after"] == retry_after
            assert answer.headers["x-isochrone-attempts"] == "2"
            served.assert_nothing_left()

    run(test())


def test_an_endless_error_answer_is_not_kept():
    """More than `held_answer_bytes_max`: our own error goes out instead."""

    async def flood(wire: Wire) -> None:
        wire.send(head(500, "content-type: text/plain", "transfer-encoding: chunked"))
        while not wire.request.peer_closed.is_set():
            wire.send(chunk(b"x" * 1000))
            await wire.flushed()
            await wire.turn()

    async def test():
        async with FakeEngine() as engine, serving(engine, limits=quick(held_answer_bytes_max=10_000)) as served:
            engine.script = flood
            answer = await ask(served.port, post(chat()))
            assert answer.status == 502
            assert answer.code == "instance_failed"
            await engine.requests[0].peer_closed.wait()
            served.assert_nothing_left()

    run(test())


def test_with_no_instance_there_is_a_clear_answer():
    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            engine.refuse()
            answer = await ask(served.port, post(chat()))
            assert (answer.status, answer.code) == (502, "instance_failed")
            assert "retry-after" in answer.headers
            served.assert_nothing_left()

    run(test())


# F-13: the instance closes a connection that we are about to use.


def test_an_idle_connection_is_not_kept_for_longer_than_the_engine_does():
    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            await ask(served.port, post(chat()))
            pool = served.gateway.pools[engine.id]
            assert pool.idle == 1
            while pool.open or engine.open:
                await asyncio.sleep(0.005)
            assert (await ask(served.port, post(chat()))).status == 200

    run(test())


def test_a_connection_closed_while_idle_is_not_used():
    async def test():
        async with FakeEngine() as engine, serving(engine, limits=quick(upstream_idle_s_max=60.0)) as served:
            for number in range(1, 5):
                assert (await ask(served.port, post(chat()))).status == 200
                assert engine.connects == number
                await engine.close_idle()
                while served.gateway.pools[engine.id].open:
                    await asyncio.sleep(0)
            assert all(record.tries[0].outcome == "done" and len(record.tries) == 1 for record in served.records)

    run(test())


@pytest.mark.parametrize("form", [close_at_once, reset_at_once])
def test_a_connection_closed_just_as_it_is_used_is_replaced_in_silence(form):
    """The engine closes in the moment in which the request is written: a fresh connection, no fault, one attempt."""

    async def test():
        async with FakeEngine() as engine, serving(engine, limits=quick(upstream_idle_s_max=60.0)) as served:
            good = engine.script

            async def once(wire: Wire) -> None:
                engine.script = good
                await form(wire)

            for _ in range(5):
                assert (await ask(served.port, post(chat()))).status == 200
                engine.script = once
                answer = await ask(served.port, post(chat()))
                assert answer.status == 200
                assert answer.headers["x-isochrone-attempts"] == "1"
            assert [record.outcome for record in served.records] == ["done"] * 10
            assert [view.failures for view in served.gateway.cluster.instances()] == [0]
            served.assert_nothing_left()

    run(test())


@pytest.mark.parametrize("junk", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b"noise"])
def test_a_connection_that_is_not_clean_is_not_used_again(junk: bytes):
    """The engine says that it will close, or sends more than was asked for."""
    lines = ["content-type: application/json", "content-length: 2"] + ([] if junk else ["connection: close"])

    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            engine.script = raw(head(200, *lines) + b"{}" + junk)
            for number in range(1, 4):
                assert (await ask(served.port, post(chat()))).json() == {}
                assert engine.connects == number
            served.assert_nothing_left()

    run(test())


# T-03: limits of an attempt.


async def silence(wire: Wire) -> None:
    await wire.request.peer_closed.wait()


async def head_then_silence(wire: Wire) -> None:
    wire.send(SSE_HEAD)
    await wire.request.peer_closed.wait()


async def tokens_then_silence(wire: Wire) -> None:
    wire.send(SSE_HEAD + b"".join(chunk(token) for token in TOKENS))
    await wire.request.peer_closed.wait()


async def only_comments(wire: Wire) -> None:
    wire.send(SSE_HEAD + chunk(TOKENS[0]))
    while not wire.request.peer_closed.is_set():
        wire.send(chunk(b": still here\n\n"))
        await asyncio.sleep(0.005)


SILENT = {
    "never answers": (silence, "first_token_s", 0),
    "head, then silence": (head_then_silence, "first_token_s", 0),
    "tokens, then silence": (tokens_then_silence, "gap_s", 3),
    "comments are no progress": (only_comments, "gap_s", 1),
}


@pytest.mark.parametrize("silent", SILENT)
def test_silence_ends_at_its_limit(silent: str):
    script, limit, tokens = SILENT[silent]
    settings = Settings(policy="round-robin", first_token_s=0.08, gap_s=0.05, whole_s=5.0)

    async def test():
        async with FakeEngine() as engine, serving(engine, settings=settings) as served:
            engine.script = script
            answer = await ask(served.port, post(chat(stream=True)))
            if tokens:
                assert answer.chunks[-1].startswith(b"data: {")
                assert limit.encode() in answer.chunks[-1]
                assert b"[DONE]" not in answer.body
            else:
                assert (answer.status, answer.code) == (504, "timeout")
                assert f"{limit} = {getattr(settings, limit):g} s" in answer.json()["error"]["message"]
            await engine.requests[0].peer_closed.wait()
            assert served.records[-1].tries[0].outcome == "timed_out"
            served.assert_nothing_left()

    run(test())


def test_a_slow_but_steady_stream_is_never_cut():
    settings = Settings(policy="round-robin", first_token_s=0.5, gap_s=0.1)

    async def steady(wire: Wire) -> None:
        wire.send(SSE_HEAD)
        for _ in range(12):
            wire.send(chunk(TOKENS[0]))
            await asyncio.sleep(0.03)
        wire.send(chunk(DONE) + END)

    async def test():
        async with FakeEngine() as engine, serving(engine, settings=settings) as served:
            engine.script = steady
            answer = await ask(served.port, post(chat(stream=True)))
            assert answer.body == TOKENS[0] * 12 + DONE

    run(test())


def test_a_long_answer_that_is_not_streamed_is_bounded_by_the_whole_limit_alone():
    """T-01: no first-token limit where there is no first token to see."""
    settings = Settings(policy="round-robin", first_token_s=0.02, whole_s=0.2)

    async def test():
        async with FakeEngine() as engine, serving(engine, settings=settings) as served:

            async def late(wire: Wire) -> None:
                await asyncio.sleep(0.1)
                await json_answer({"late": True})(wire)

            engine.script = late
            assert (await ask(served.port, post(chat()))).json() == {"late": True}
            engine.script = silence
            answer = await ask(served.port, post(chat()))
            assert (answer.status, answer.code) == (504, "timeout")
            assert "whole_s" in answer.json()["error"]["message"]

    run(test())


def test_a_removed_instance_lets_go_of_its_requests():
    """Withdrawn without a drain: what had begun is cut and told so, what had not goes elsewhere or is told so."""

    async def test():
        async with FakeEngine() as engine, serving(engine) as served, RawClient(served.port) as client:
            engine.script = tokens_then_silence
            client.send(post(chat(stream=True)))
            await client.head()
            served.gateway.remove_instance(engine.id, drain=False)
            rest = await client.reader.read()
            assert b'"error"' in rest
            assert rest.endswith(END)
            await engine.requests[0].peer_closed.wait()
            await served.until_idle()
            served.assert_nothing_left()
            join(served.gateway, engine.id, engine.url)
            engine.script = GOOD
            assert (await ask(served.port, post(chat(stream=True)))).status == 200

    run(test())
