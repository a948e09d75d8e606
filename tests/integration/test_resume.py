"""Streams that lose their instance: what the client sees, and who is asked (S-04, F-12 and T-03 with resume on)."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from isochrone.access import splice
from isochrone.gateway import answers
from isochrone.nouns.commands import Abort, Command
from isochrone.nouns.events import Event, FirstToken, Progress
from isochrone.nouns.instant import Instant
from isochrone.nouns.settings import Settings
from tests.support import byte_engine
from tests.support.byte_engine import read
from tests.support.fake_engine import END, SSE_HEAD, FakeEngine, Script, Wire, chunk, json_answer, raw, sse_answer
from tests.support.raw_client import Answer, RawClient, ask, post
from tests.support.running import Served, quick, run, serving

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RETRIES = Settings(policy="round-robin", retry_tokens_per_s=1e9, retry_tokens_max=1e9)
"""A retry budget that is never the reason."""
TOKENS = 12


def body(path: str, **more: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]} if path == CHAT else {"prompt": "x"}
    usage = {"stream_options": {"include_usage": True}}
    return {"model": "m", "stream": True, "temperature": 0, "max_tokens": TOKENS, **usage, **asked, **more}


def events(request: dict[str, Any], path: str, id: str) -> list[bytes]:
    return byte_engine.stream(request, path == CHAT, id=id)


async def close(wire: Wire) -> None:
    wire.close()


async def reset(wire: Wire) -> None:
    wire.reset()


async def end(wire: Wire) -> None:
    """The body ends in good order, the stream does not."""
    wire.send(END)


async def hang(wire: Wire) -> None:
    await wire.request.peer_closed.wait()


async def report(wire: Wire) -> None:
    """As vLLM does when its engine core has died."""
    wire.send(chunk(b'data: {"error":{"message":"EngineCore encountered an issue","code":500}}\n\n'))
    wire.send(chunk(b"data: [DONE]\n\n") + END)


async def give_up(wire: Wire) -> None:
    """As vLLM does when it is stopped."""
    choice = {"index": 0, "delta": {"content": ""}, "text": "", "finish_reason": "abort", "token_ids": []}
    wire.send(chunk(f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n".encode()) + END)


def engine_script(
    id: str, after: int | None = None, then: Callable[[Wire], Any] = close, seen: list[dict[str, Any]] | None = None
) -> Script:
    """Answers as the request says; after so many events, something else happens."""

    async def script(wire: Wire) -> None:
        request = json.loads(wire.request.body)
        if seen is not None:
            seen.append(request)
        answer = events(request, wire.request.target, id)
        wire.send(SSE_HEAD)
        for event in answer[:after]:
            wire.send(chunk(event))
            await wire.turn()
        if after is not None and after < len(answer):
            await then(wire)
        else:
            wire.send(END)

    return script


async def cut(served: Served, bad: FakeEngine, request: dict[str, Any], path: str) -> Answer:
    """Ask until the answer begins at the bad instance; the first of two is enough under round-robin."""
    for _ in range(2):
        answer = await ask(served.port, post(json.dumps(request).encode(), path))
        assert answer.status == 200
        if answer.headers["x-isochrone-instance"] == bad.id:
            await served.until_idle()
            served.assert_nothing_left()
            return answer
    raise AssertionError("the bad instance was not asked")


def is_whole(answer: Answer, path: str, request: dict[str, Any]) -> None:
    """The same as from one instance, and under one id."""
    expected = read(b"".join(byte_engine.stream(request, path == CHAT, id="bad")))
    assert answer.whole
    assert read(answer.body) == expected


def error_of(answer: Answer) -> dict[str, Any]:
    """The last event, which is an error; nothing follows it."""
    assert b"[DONE]" not in answer.body
    last = answer.body.rpartition(b"data: ")[2]
    error: dict[str, Any] = json.loads(last)["error"]
    return error


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("then", [close, reset, end, report, give_up])
def test_death_at_every_event(path: str, then: Callable[[Wire], Any]) -> None:
    async def test() -> None:
        async with FakeEngine() as bad, FakeEngine() as good:
            request = body(path)
            count = len(events(request, path, "bad"))
            for after in range(1, count):
                async with serving(bad, good, settings=RETRIES, kind="vllm") as served:
                    asked: list[dict[str, Any]] = []
                    bad.script = engine_script("bad", after, then)
                    good.script = engine_script("good", seen=asked)
                    answer = await cut(served, bad, request, path)
                    is_whole(answer, path, request)
                    continuations = [one for one in asked if "prompt" in one and one["prompt"] != "x"]
                    finished = after >= count - 2
                    assert len(continuations) == served.gateway.kept.resumed == (0 if finished else 1)
                    for one in continuations:
                        said = len(one["prompt"]) - len(byte_engine.prompt_ids(request))
                        assert one["max_tokens"] == TOKENS - said > 0
                        assert one["temperature"] == 0

    run(test())


def test_a_stream_that_hangs_goes_on_elsewhere_after_its_gap() -> None:
    """T-03 (b)."""

    async def test() -> None:
        settings = Settings(policy="round-robin", gap_s=0.1)
        async with (
            FakeEngine() as bad,
            FakeEngine() as good,
            serving(bad, good, settings=settings, kind="vllm") as served,
        ):
            bad.script, good.script = engine_script("bad", 5, hang), engine_script("good")
            is_whole(await cut(served, bad, body(CHAT), CHAT), CHAT, body(CHAT))
            decision = next(one for one in served.records if len(one.tries) == 2)
            assert [one.outcome for one in decision.tries] == ["timed_out", "done"]
            assert decision.outcome == "done"
            assert decision.output_tokens == TOKENS
            assert decision.prompt_tokens == len(byte_engine.prompt_ids(body(CHAT)))

    run(test())


def test_the_limit_of_the_whole_request_is_not_got_round() -> None:
    async def test() -> None:
        settings = Settings(policy="round-robin", whole_s=0.2)
        async with (
            FakeEngine() as bad,
            FakeEngine() as good,
            serving(bad, good, settings=settings, kind="vllm") as served,
        ):
            bad.script, good.script = engine_script("bad", 5, hang), engine_script("good")
            assert "whole_s" in error_of(await cut(served, bad, body(CHAT), CHAT))["message"]
            assert served.gateway.kept.resumed == 0

    run(test())


REFUSED = {
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "n": {"n": 2},
    "logprobs": {"logprobs": True},
    "presence_penalty": {"presence_penalty": 0.5},
    "min_tokens": {"min_tokens": 3},
    "response_format": {"response_format": {"type": "json_object"}},
    "a field nobody knows": {"frobnicate": 1},
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_continued_says_so(why: str) -> None:
    """F-12: text that the client has is never repeated; S-04: and the break is told."""

    async def test() -> None:
        async with (
            FakeEngine() as bad,
            FakeEngine() as good,
            serving(bad, good, settings=RETRIES, kind="vllm") as served,
        ):
            asked: list[dict[str, Any]] = []
            bad.script, good.script = engine_script("bad", 5, seen=asked), engine_script("good", seen=asked)
            answer = await cut(served, bad, body(CHAT, **REFUSED[why]), CHAT)
            message = error_of(answer)["message"]
            assert "cannot go on elsewhere" in message
            assert ("choice" if why == "n" else "frob" if "field" in why else why) in message
            assert not any("return_token_ids" in one for one in asked)
            assert len(bad.requests) == 1

    run(test())


def test_sampling_goes_on_where_it_stopped() -> None:
    """A fresh sample follows the very last token; the byte engine happens to say the same."""

    async def test() -> None:
        async with (
            FakeEngine() as bad,
            FakeEngine() as good,
            serving(bad, good, settings=RETRIES, kind="vllm") as served,
        ):
            request = body(COMPLETIONS, temperature=0.7, seed=3, prompt="xyz")
            whole = events(request, COMPLETIONS, "bad")
            after = next(n for n, event in enumerate(whole, 1) if n > 2 and json.loads(event[6:])["choices"][0]["text"])
            bad.script, good.script = engine_script("bad", after), engine_script("good")
            is_whole(await cut(served, bad, request, COMPLETIONS), COMPLETIONS, request)

    run(test())


def test_an_engine_that_gives_no_ids_is_not_asked_for_them() -> None:
    async def test() -> None:
        async with (
            FakeEngine() as bad,
            FakeEngine() as good,
            serving(bad, good, settings=RETRIES, kind="openai") as served,
        ):
            asked: list[dict[str, Any]] = []
            bad.script, good.script = engine_script("bad", 5, seen=asked), engine_script("good", seen=asked)
            answer = await cut(served, bad, body(CHAT), CHAT)
            assert "no token ids" in error_of(answer)["message"]
            assert not any("return_token_ids" in one for one in asked)

    run(test())


def test_with_one_instance_the_client_hears_what_the_engine_said() -> None:
    async def test() -> None:
        async with FakeEngine() as bad, serving(bad, settings=RETRIES, kind="vllm") as served:
            bad.script = engine_script("bad", 5, report)
            answer = await cut(served, bad, body(CHAT), CHAT)
            assert error_of(answer)["message"] == "EngineCore encountered an issue"

    run(test())


NOT_CONTINUING = {
    "400": json_answer({"error": {"message": "no"}}, 400),
    "503": json_answer({"error": {"message": "full"}}, 503),
    "not a stream": json_answer({"choices": []}),
    "closed at once": close,
    "no event": raw(SSE_HEAD, fin=True),
    "an error event": sse_answer([b'data: {"error":{"message":"x"}}\n\n', b"data: [DONE]\n\n"]),
    "another text": sse_answer([
        b'data: {"id":"x","choices":[{"index":0,"text":"%b","finish_reason":null,"token_ids":[1]}]}\n\n' % (b"Z" * 99)
    ]),
}  # fmt: skip


@pytest.mark.parametrize("how", NOT_CONTINUING)
def test_a_continuation_that_fails_is_told(how: str) -> None:
    async def test() -> None:
        async with (
            FakeEngine() as bad,
            FakeEngine() as good,
            serving(bad, good, settings=RETRIES, kind="vllm") as served,
        ):
            request = body(CHAT, stop="never this")
            bad.script = engine_script("bad", 12)
            good.scripts[CHAT] = engine_script("good")
            good.scripts[COMPLETIONS] = NOT_CONTINUING[how]
            answer = await cut(served, bad, request, CHAT)
            assert error_of(answer)["code"] == "answer_broke_off"
            assert served.gateway.kept.resumed == 1

    run(test())


def test_a_chat_without_a_bound_goes_on_to_the_end_of_its_context() -> None:
    async def test() -> None:
        async with (
            FakeEngine() as bad,
            FakeEngine() as good,
            serving(bad, good, settings=RETRIES, kind="vllm", longest=byte_engine.CONTEXT_TOKENS) as served,
        ):
            request = body(CHAT)
            del request["max_tokens"]
            bad.script, good.script = engine_script("bad", 9), engine_script("good")
            is_whole(await cut(served, bad, request, CHAT), CHAT, request)
            (decision,) = (one for one in served.records if len(one.tries) == 2)
            assert decision.output_tokens == byte_engine.CONTEXT_TOKENS - len(byte_engine.prompt_ids(request))

    run(test())


def test_without_room_in_the_context_of_the_next_instance_the_break_is_told() -> None:
    async def test() -> None:
        async with (
            FakeEngine() as bad,
            FakeEngine() as good,
            serving(bad, good, settings=RETRIES, kind="vllm", longest=None) as served,
        ):
            request = body(CHAT)
            del request["max_tokens"]
            bad.script, good.script = engine_script("bad", 9), engine_script("good")
            assert "context" in error_of(await cut(served, bad, request, CHAT))["message"]

    run(test())


def test_a_third_instance_goes_on_where_the_second_fails_too() -> None:
    async def test() -> None:
        async with (
            FakeEngine() as one,
            FakeEngine() as two,
            FakeEngine() as three,
            serving(one, two, three, settings=RETRIES, kind="vllm") as served,
        ):
            for engine, after in ((one, 5), (two, 4), (three, 6)):
                engine.script = engine_script(engine.id, after)
            request = body(CHAT)
            answer = await ask(served.port, post(json.dumps(request).encode(), CHAT))
            expected = read(b"".join(events(request, CHAT, answer.headers["x-isochrone-instance"])))
            assert read(answer.body) == expected
            assert served.gateway.kept.resumed == 2
            await served.until_idle()
            served.assert_nothing_left()

    run(test())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_long_prompts_are_tokenized_again(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splice, "PROMPT_IDS_BYTES_MAX", 200)
    monkeypatch.setattr(byte_engine, "CONTEXT_TOKENS", 30_000)

    async def test() -> None:
        async with (
            FakeEngine() as bad,
            FakeEngine() as good,
            serving(bad, good, settings=RETRIES, kind="vllm", longest=30_000) as served,
        ):
            asked: dict[str, Any] = {"messages": [{"role": "user", "content": "long " * 5000}]}
            request = body(path, **(asked if path == CHAT else {"prompt": "long " * 5000}))

            async def tokenize(wire: Wire) -> None:
                said = json.loads(wire.request.body)
                assert (said.get("messages"), said.get("prompt")) == (request.get("messages"), request.get("prompt"))
                ids = byte_engine.prompt_ids(said)
                await json_answer({"count": len(ids), "tokens": ids})(wire)

            for engine in (bad, good):
                engine.scripts["/tokenize"] = tokenize
            bad.script, good.script = engine_script("bad", 6), engine_script("good")
            answer = await cut(served, bad, request, path)
            is_whole(answer, path, request)
            assert served.gateway.kept.resumed == 1

    run(test())


@pytest.mark.parametrize("limit", ["resume_bytes_max", "resume_stream_bytes_max"])
def test_memory_for_resuming_is_bounded(limit: str) -> None:
    async def test() -> None:
        async with (
            FakeEngine() as bad,
            FakeEngine() as good,
            serving(bad, good, settings=RETRIES, kind="vllm", limits=quick(**{limit: 10})) as served,
        ):
            bad.script, good.script = engine_script("bad", 6), engine_script("good")
            assert limit in error_of(await cut(served, bad, body(CHAT), CHAT))["message"]
            assert served.gateway.kept.forgotten > 0

    run(test())


@pytest.mark.parametrize("drain", [True, False])
def test_a_stream_is_moved_off_an_instance_that_leaves(drain: bool) -> None:
    async def test() -> None:
        settings = Settings(policy="round-robin", drain_move_s=0.05)
        async with (
            FakeEngine() as bad,
            FakeEngine() as good,
            serving(bad, good, settings=settings, kind="vllm") as served,
        ):
            bad.script, good.script = engine_script("bad", 5, hang), engine_script("good", 5, hang)
            request = body(CHAT)
            async with RawClient(served.port) as client:
                client.send(post(json.dumps(request).encode(), CHAT))
                await client.head()
                first = bad if bad.requests else good
                other = good if first is bad else bad
                other.script = engine_script("other")
                served.gateway.remove_instance(first.id, drain)
                rest = await client.reader.readuntil(END)
                text = read(b"".join(events(request, CHAT, "x")))["text"]
                parts = [line for line in rest.split(b"\r\n") if line.startswith(b"data: ")]
                said = read(b"".join(part.rstrip() + b"\n\n" for part in parts))
                assert said["text"] == text
                await asyncio.wait_for(first.requests[0].peer_closed.wait(), 5)
                await served.until_idle()
                served.assert_nothing_left()

    run(test())


@pytest.mark.parametrize("news", [FirstToken, Progress])
def test_a_stream_that_is_moved_over_its_own_news_misses_nothing(
    news: type[FirstToken | Progress], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster may answer the very news of a token with an Abort: that token has to be with the client by then."""
    monkeypatch.setattr(answers, "PROGRESS_TOKENS", 2)

    async def test() -> None:
        async with (
            FakeEngine() as one,
            FakeEngine() as two,
            serving(one, two, settings=RETRIES, kind="vllm") as served,
        ):
            one.script = two.script = engine_script("x")
            brain = served.gateway.brain
            handle = brain.cluster.handle
            told: list[Event] = []

            def handle_and_abort(now: Instant, event: Event) -> Sequence[Command]:
                commands = list(handle(now, event))
                if isinstance(event, news) and not told:
                    told.append(event)
                    commands.append(Abort(event.attempt, "moved", if_movable=True))
                return commands

            monkeypatch.setattr(brain.cluster, "handle", handle_and_abort)
            request = body(CHAT)
            answer = await ask(served.port, post(json.dumps(request).encode(), CHAT))
            assert told
            assert served.gateway.kept.resumed == 1
            assert read(answer.body) == read(b"".join(events(request, CHAT, "x")))
            await served.until_idle()
            served.assert_nothing_left()

    run(test())


def test_draining_lets_a_stream_be_that_cannot_move() -> None:
    async def test() -> None:
        settings = Settings(policy="round-robin", drain_move_s=0.02)
        gate = asyncio.Event()

        async def wait(wire: Wire) -> None:
            await gate.wait()
            request = json.loads(wire.request.body)
            for event in events(request, CHAT, "bad")[5:]:
                wire.send(chunk(event))
            wire.send(END)

        async with (
            FakeEngine() as bad,
            FakeEngine() as good,
            serving(bad, good, settings=settings, kind="vllm") as served,
        ):
            bad.script = good.script = engine_script("bad", 5, wait)
            request = body(CHAT, min_tokens=3)
            answer = asyncio.ensure_future(ask(served.port, post(json.dumps(request).encode(), CHAT)))
            while not bad.requests and not good.requests:
                await asyncio.sleep(0.001)
            first = bad if bad.requests else good
            served.gateway.remove_instance(first.id, drain=True)
            await asyncio.sleep(0.1)
            gate.set()
            is_whole(await answer, CHAT, request)
            await served.until_idle()
            served.assert_nothing_left()

    run(test())
