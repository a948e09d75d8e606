"""Reported cases of streams: S-07."""

import asyncio

import openai
import pytest

from tests.support.fake_engine import DONE, END, SSE_HEAD, FakeEngine, Wire, chunk, delta, sse_answer
from tests.support.raw_client import ask, chat, post
from tests.support.running import quick, run, serving

ALIVE_S = 0.03


def silent(*parts: bytes) -> object:
    """An engine that says nothing for some intervals before each part."""

    async def script(wire: Wire) -> None:
        wire.send(SSE_HEAD)
        for part in parts:
            await asyncio.sleep(6.5 * ALIVE_S)
            wire.send(chunk(part))
        wire.send(END)

    return script


@pytest.mark.parametrize("ids", [b"", b"id: 7\n"], ids=["plain", "with ids"])
def test_s07_comments_keep_a_silent_stream_alive_and_break_no_client(ids: bytes) -> None:
    events = [ids + delta("one"), ids + delta(" two", "stop"), DONE]

    async def test() -> None:
        limits = quick(keep_alive_s=ALIVE_S, sweep_s=0.005)
        async with FakeEngine() as engine, serving(engine, limits=limits) as served:
            engine.script = silent(events[0], events[1] + events[2])
            answer = await ask(served.port, post(chat(stream=True)))
            assert [part for part in answer.chunks if part != b":\n"] == [events[0], events[1] + events[2]]
            first = answer.chunks.index(events[0])
            assert first >= 2, "before the first token"
            assert len(answer.chunks) - first - 2 >= 2, "and in the middle"
            url = f"http://127.0.0.1:{served.port}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
                stream = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "hi"}], stream=True
                )
                assert [part.choices[0].delta.content async for part in stream] == ["one", " two"]
            await served.until_idle()
            served.assert_nothing_left()

    run(test())


def test_s07_a_comment_never_stands_inside_an_event() -> None:
    event = delta("one", "stop")

    async def test() -> None:
        limits = quick(keep_alive_s=ALIVE_S, sweep_s=0.005)
        async with FakeEngine() as engine, serving(engine, limits=limits) as served:
            engine.script = silent(event[:20], event[20:] + DONE)
            answer = await ask(served.port, post(chat(stream=True)))
            assert answer.body.replace(b":\n", b"", answer.chunks.count(b":\n")) == event + DONE
            assert all(part in (b":\n", event + DONE) for part in answer.chunks)
            assert answer.chunks.count(b":\n") >= 4

    run(test())


def test_s07_without_the_option_nothing_is_added() -> None:
    async def test() -> None:
        async with FakeEngine() as engine, serving(engine) as served:
            engine.script = sse_answer([delta("one", "stop"), DONE])
            assert (await ask(served.port, post(chat(stream=True)))).body == delta("one", "stop") + DONE

    run(test())
