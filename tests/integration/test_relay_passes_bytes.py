"""What goes through unchanged, and what is changed on purpose (A-01, A-06, A-11, S-01 to S-12)."""

import asyncio
import gzip
import json
import random

import pytest

from tests.support.fake_engine import (
    DONE,
    END,
    SSE_HEAD,
    FakeEngine,
    Wire,
    chunk,
    chunked,
    delta,
    event,
    head,
    json_answer,
    raw,
    sse_answer,
)
from tests.support.raw_client import RawClient, ask, chat, get, post
from tests.support.running import quick, run, serving

ODD_BODY = (
    b'{ "zeta":{"b":[1,{"c":null}],"a":1e-7} ,"model":"m","top_k":null,"big":9223372036854775809,"one":1.0,'
    b'"dup":1,"dup":2,"lone":"\\ud83d","messages":[{"role":"user","content":"\\u00e9 caf\xc3\xa9 \xed\x95\x9c"}],'
    b'"return_token_ids":true,"chat_template_kwargs":{"x":[]},"priority":-3,"cache_salt":"s","max_completion_tokens":5,'
    b'"stop":null,"ignore_eos":true,"temperature":0.30000000000000004}\n'
)
"""Known and invented fields, odd numbers, repeated unknown keys, white space, a lone surrogate (A-01)."""

USAGE = event({"object": "chat.completion.chunk", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}})
STREAM = [delta("한국어 "), delta("Привет "), delta("🙂\n", "stop"), DONE]


def test_a_body_passes_byte_for_byte():
    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            answer = await ask(served.port, post(ODD_BODY))
            assert answer.status == 200
            assert engine.requests[0].body == ODD_BODY

    run(test())


def test_headers_of_the_hop_stay_and_the_others_pass():
    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            lines = (
                "Authorization: Bearer sk-client", "X-Custom: 1", "X-Custom: 2", "TE: trailers", "Keep-Alive: 5",
                "Connection: keep-alive, X-Hop", "X-Hop: secret", "Proxy-Authorization: no", "x-session-id: s",
                "X-ISOCHRONE-INSTANCE: elsewhere", "x-gateway-destination-endpoint: 10.0.0.1:80", "X-Worker-Id: 3",
                "x-data-parallel-rank: 1",
            )  # fmt: skip
            await ask(served.port, post(chat(), "/v1/chat/completions?a=b", *lines))
            seen = engine.requests[0]
            assert seen.target == "/v1/chat/completions?a=b"
            assert seen.head.count(b"X-Custom: ") == 2
            assert set(seen.headers) == {
                "host", "content-type", "content-length", "authorization", "x-custom", "x-session-id", "x-request-id",
            }  # fmt: skip
            assert seen.headers["host"] == engine.id
            assert seen.headers["authorization"] == "Bearer sk-client"

    run(test())


def test_every_answer_says_who_served_it():
    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            answer = await ask(served.port, post(chat(), "/v1/chat/completions", "X-Request-Id: mine-1.2"))
            assert answer.headers["x-isochrone-request-id"] == "mine-1.2"
            assert answer.headers["x-isochrone-instance"] == engine.id
            assert answer.headers["x-isochrone-attempts"] == "1"
            assert engine.requests[0].headers["x-request-id"] != "mine-1.2"
            for bad in ("a b", "x" * 200, 'quote"', "new%0aline?"):
                answer = await ask(served.port, post(chat(), "/v1/chat/completions", f"X-Request-Id: {bad}"))
                assert answer.headers["x-isochrone-request-id"] != bad
                assert len(answer.headers["x-isochrone-request-id"]) == 16

    run(test())


def test_two_open_requests_never_share_an_id():
    async def test():
        gate = asyncio.Event()

        async def wait(wire: Wire) -> None:
            await gate.wait()
            await json_answer({})(wire)

        async with FakeEngine() as engine, serving(engine) as served:
            engine.script = wait
            request = post(chat(), "/v1/chat/completions", "X-Request-Id: same")
            async with RawClient(served.port) as one, RawClient(served.port) as two:
                one.send(request)
                await engine.request(1)
                two.send(request)
                await engine.request(2)
                gate.set()
                ids = [(await client.answer()).headers["x-isochrone-request-id"] for client in (one, two)]
                assert ids[0] == "same"
                assert ids[1] != "same"

    run(test())


@pytest.mark.parametrize("size", [1, 7])
def test_a_stream_keeps_its_bytes_however_it_is_cut(size: int):
    """S-01: one byte a write, then seven; the framing is cut as well as the text."""
    whole = SSE_HEAD + b"".join(chunk(part) for part in STREAM) + END

    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            engine.script = raw(*(whole[at : at + size] for at in range(0, len(whole), size)))
            answer = await ask(served.port, post(chat(stream=True)))
            assert answer.body == b"".join(STREAM)
            await served.until_idle()
            assert served.records[-1].output_tokens == 3
            assert served.records[-1].outcome == "done"

    run(test())


def test_a_stream_cut_once_at_every_byte():
    """S-01: two reads, the border at each offset in turn. Whole events come out, counts are the same."""
    body = b"".join(STREAM)

    async def test():
        async with FakeEngine() as engine, serving(engine) as served, RawClient(served.port) as client:
            for at in range(1, len(body)):
                engine.script = chunked([body[:at], body[at:]])
                client.send(post(chat(stream=True)))
                answer = await client.answer()
                assert answer.body == body
                assert all(part.endswith(b"\n\n") for part in answer.chunks)
                assert served.records[-1].output_tokens == 3

    run(test())


@pytest.mark.parametrize("wanted", [True, False])
def test_the_usage_event_is_seen_only_by_those_who_asked(wanted: bool):
    """S-02."""
    options = {"stream_options": {"include_usage": True}} if wanted else {}

    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            engine.script = sse_answer([*STREAM[:3], USAGE, DONE])
            answer = await ask(served.port, post(chat(stream=True, **options)))
            assert json.loads(engine.requests[0].body)["stream_options"] == {"include_usage": True}
            assert answer.body == b"".join([*STREAM[:3], *([USAGE] if wanted else []), DONE])
            await served.until_idle()
            assert (served.records[-1].prompt_tokens, served.records[-1].output_tokens) == (7, 2)

    run(test())


def test_inject_none_splices_nothing():
    async def test():
        async with FakeEngine() as engine, serving(engine, inject=False) as served:
            engine.script = sse_answer(STREAM)
            await ask(served.port, post(chat(stream=True)))
            assert engine.requests[0].body == chat(stream=True)

    run(test())


def test_odd_events_pass_unchanged():
    """S-11: several choices out of order, tool calls in pieces, fields that nobody knows, comments, other line ends."""
    events = [
        event({"choices": [{"index": 2, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}),
        b': keep-alive\n\nid: 7\nevent: message\ndata: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}\n\n',
        b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{\\"a"}}]},"logprobs":{}}]}\r\n\r\n',
        event({"choices": [{"index": 1, "delta": {"reasoning": "x"}}], "never_seen": {"deep": [1, 2]}}),
        b"data: not json\n\n",
        DONE,
    ]

    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            engine.script = sse_answer(events)
            answer = await ask(served.port, post(chat(stream=True, n=3)))
            assert answer.body == b"".join(events)

    run(test())


def test_audio_passes_untouched():
    """S-12."""
    sound = bytes(range(256)) * 40 + b"\n\n\r\n\x00\xff"

    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            engine.script = chunked(
                [sound[:1000], sound[1000:]], head(200, "content-type: audio/wav", "transfer-encoding: chunked")
            )
            answer = await ask(served.port, post(b'{"model":"m","input":"hi"}', "/v1/audio/speech"))
            assert answer.body == sound
            assert answer.headers["content-type"] == "audio/wav"

    run(test())


def test_compression_is_left_alone():
    """A-06: label and bytes agree, for JSON and for a stream that is flushed event by event."""
    packed = gzip.compress(b'{"choices":[]}')

    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            lines = ("content-type: application/json", "content-encoding: gzip", f"content-length: {len(packed)}")
            engine.script = raw(head(200, *lines) + packed)
            answer = await ask(served.port, post(chat(), "/v1/chat/completions", "Accept-Encoding: gzip"))
            assert engine.requests[0].headers["accept-encoding"] == "gzip"
            assert answer.headers["content-encoding"] == "gzip"
            assert answer.body == packed
            stream_head = head(
                200, "content-type: text/event-stream", "content-encoding: gzip", "transfer-encoding: chunked"
            )
            engine.script = chunked([packed[:9], packed[9:]], stream_head)
            answer = await ask(served.port, post(chat(stream=True)))
            assert answer.body == packed
            assert answer.chunks == [packed[:9], packed[9:]]

    run(test())


GZIP = "Content-Encoding: gzip"


@pytest.mark.parametrize("framing", ["one piece", "chunks of a byte", "two members"])
def test_a_gzip_request_is_unpacked(framing: str):
    """A-06: the engine gets the plain body, labelled so; the connection goes on."""
    packed = gzip.compress(ODD_BODY)
    if framing == "two members":
        packed = gzip.compress(ODD_BODY[:50]) + gzip.compress(ODD_BODY[50:])
    request = post(packed, "/v1/chat/completions", GZIP)
    if framing == "chunks of a byte":
        request_head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{GZIP}\r\nTransfer-Encoding: chunked\r\n\r\n"
        request = request_head.encode() + b"".join(chunk(bytes([byte])) for byte in packed) + END

    async def test():
        async with FakeEngine() as engine, serving(engine) as served, RawClient(served.port) as client:
            for _ in range(2):
                client.send(request)
                assert (await client.answer()).status == 200
            assert [received.body for received in engine.requests] == [ODD_BODY, ODD_BODY]
            assert "content-encoding" not in engine.requests[0].headers
            served.assert_nothing_left()

    run(test())


BAD_GZIP = {
    "not gzip": (chat(), GZIP, 400, "invalid_gzip"),
    "cut": (gzip.compress(chat())[:-9], GZIP, 400, "invalid_gzip"),
    "a bomb": (gzip.compress(b" " * 2_500_000), GZIP, 413, "gzip_ratio"),
    "too large": (gzip.compress(random.Random(1).randbytes(3_100_000)), GZIP, 413, "body_too_large"),
    "many members": (gzip.compress(b"") * 100, GZIP, 400, "invalid_gzip"),
    "another coding": (chat(), "Content-Encoding: br", 415, "unsupported_media_type"),
    "two codings": (chat(), "Content-Encoding: gzip, gzip", 415, "unsupported_media_type"),
}


@pytest.mark.parametrize("bad", BAD_GZIP)
def test_a_compressed_request_that_cannot_be_read_is_refused(bad: str):
    """A-06: early, and without unpacking more than the limit."""
    body, line, status, code = BAD_GZIP[bad]

    async def test():
        limits = quick(body_bytes_max=3_000_000, body_s_max=5.0)
        async with FakeEngine() as engine, serving(engine, limits=limits) as served:
            answer = await ask(served.port, post(body, "/v1/chat/completions", line))
            assert (answer.status, answer.code) == (status, code)
            assert engine.seen == 0
            served.assert_nothing_left()

    run(test())


def test_a_chunked_body_reaches_the_engine_with_one_framing():
    """A-11: chunks of one byte, with an extension and a trailer."""
    body = chat()
    pieces = b"".join(b'1;name="x"\r\n%c\r\n' % byte for byte in body) + b"0\r\nX-Trailer: 1\r\nx-worker-id: 4\r\n\r\n"
    request_head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def test():
        async with FakeEngine() as engine, serving(engine) as served, RawClient(served.port) as client:
            client.send(request_head + pieces)
            assert (await client.answer()).status == 200
            seen = engine.requests[0]
            assert seen.body == body
            assert seen.headers["content-length"] == str(len(body))
            assert not {"transfer-encoding", "x-trailer", "x-worker-id"} & set(seen.headers)
            client.send(get("/health"))
            assert (await client.answer()).status == 200

    run(test())


def test_an_error_answer_keeps_its_own_length():
    """S-06: a 400 to a streaming request, then another request on the same connection, pipelined and after."""
    refusal = {"error": {"message": "too long " + "x" * 30, "type": "BadRequestError", "param": None, "code": 400}}

    async def test():
        async with FakeEngine() as engine, serving(engine) as served, RawClient(served.port) as client:
            engine.script = json_answer(refusal, 400)
            client.send(post(chat(stream=True)) + post(chat(stream=True)))
            for _ in range(2):
                answer = await client.answer()
                assert (answer.status, answer.json()) == (400, refusal)
            engine.script = sse_answer(STREAM)
            client.send(post(chat(stream=True)))
            assert (await client.answer()).body == b"".join(STREAM)
            await served.until_idle()
            served.assert_nothing_left()
            assert [record.outcome for record in served.records] == ["rejected", "rejected", "done"]

    run(test())


def test_events_are_passed_on_as_they_come():
    """S-09: nothing is collected; each event is with the client before the next one is sent."""

    async def test():
        arrived = asyncio.Event()

        async def one_by_one(wire: Wire) -> None:
            wire.send(SSE_HEAD)
            for part in STREAM:
                wire.send(chunk(part))
                await arrived.wait()
                arrived.clear()
            wire.send(END)

        async with FakeEngine() as engine, serving(engine) as served, RawClient(served.port) as client:
            engine.script = one_by_one
            client.send(post(chat(stream=True)))
            await client.head()
            for part in STREAM:
                assert await client.reader.readexactly(len(chunk(part))) == chunk(part)
                arrived.set()
            assert await client.reader.readexactly(len(END)) == END

    run(test())


def test_an_old_client_gets_no_chunks():
    """HTTP/1.0: the body ends with the connection."""
    body = chat(stream=True)
    request = b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            engine.script = sse_answer(STREAM)
            answer = await ask(served.port, request)
            assert "transfer-encoding" not in answer.headers
            assert answer.body == b"".join(STREAM)

    run(test())


def test_an_answer_that_ends_with_its_connection():
    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            engine.script = raw(head(200, "content-type: application/json"), b'{"a":', b"1}", fin=True)
            answer = await ask(served.port, post(chat()))
            assert answer.body == b'{"a":1}'
            assert answer.whole
            await served.until_idle()
            served.assert_nothing_left()

    run(test())
