"""A second instance is asked when a first token is late: over sockets, in one process and with relays and a brain."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from isochrone.nouns.settings import Settings
from tests.support.fake_engine import SSE_HEAD, FakeEngine, Script, Wire, chunk, delta, json_answer, sse_answer
from tests.support.raw_client import RawClient, ask, chat, post
from tests.support.relayed import relayed
from tests.support.running import Served, run, serving

SETTINGS = Settings(policy="round-robin", hedge_ratio=0.5, samples_warm=0)
DONE = b"data: [DONE]\n\n"
GOOD = sse_answer([delta("one"), delta(" two"), DONE])
WHOLE = delta("one") + delta(" two") + DONE

Shape = Callable[..., AbstractAsyncContextManager[Served]]
each_shape = pytest.mark.parametrize("shape", [serving, relayed])


async def silence(wire: Wire) -> None:
    await wire.request.peer_closed.wait()


async def head_and_silence(wire: Wire) -> None:
    wire.send(SSE_HEAD)
    await wire.request.peer_closed.wait()


async def error_late(wire: Wire) -> None:
    await asyncio.sleep(0.1)
    await json_answer({"error": {"message": "broken"}}, 500)(wire)


async def cut_late(wire: Wire) -> None:
    wire.send(SSE_HEAD)
    await asyncio.sleep(0.1)
    wire.reset()


async def late(wire: Wire) -> None:
    await asyncio.sleep(0.08)
    await GOOD(wire)


async def save_up(served: Served, *engines: FakeEngine) -> None:
    """Quick requests that earn second ones."""
    for engine in engines:
        engine.script = GOOD
    for _ in range(6):
        assert (await ask(served.port, post(chat(stream=True)))).body == WHOLE
    for engine in engines:
        engine.requests.clear()


@each_shape
@pytest.mark.parametrize("first", [silence, head_and_silence, error_late, cut_late, late])
def test_whoever_is_first_answers_once_and_the_other_engine_is_let_go(first: Script, shape: Shape) -> None:
    async def test() -> None:
        async with FakeEngine() as a, FakeEngine() as b, shape(a, b, settings=SETTINGS) as served:
            await save_up(served, a, b)
            a.script = first
            b.script = late if first is late else GOOD
            for _ in range(4):
                answer = await ask(served.port, post(chat(stream=True)))
                assert (answer.status, answer.body) == (200, WHOLE)
            await served.until_idle()
            for received in a.requests:
                await received.peer_closed.wait() if first in (silence, head_and_silence) else None
            asked = served.gateway.cluster._world.hedges.asked  # type: ignore[attr-defined]
            assert asked >= 1
            assert all(record.outcome == "done" for record in served.records)
            twice = [record for record in served.records if len(record.tries) == 2]
            assert len(twice) == asked
            for record in twice:
                assert record.winner in (a.id, b.id)
                assert next(one.outcome for one in record.tries if one.instance == record.winner) == "done"
            served.assert_nothing_left()

    run(test())


@each_shape
def test_a_client_that_leaves_while_two_are_asked_ends_both(shape: Shape) -> None:
    async def test() -> None:
        async with FakeEngine() as a, FakeEngine() as b, shape(a, b, settings=SETTINGS) as served:
            await save_up(served, a, b)
            a.script = b.script = silence
            async with RawClient(served.port) as client:
                client.send(post(chat(stream=True)))
                await a.request(1)
                await b.request(1)
                client.reset()
                await a.requests[0].peer_closed.wait()
                await b.requests[0].peer_closed.wait()
            await served.until_alone()
            assert served.records[-1].outcome == "client_left"
            served.assert_nothing_left()

    run(test())


@each_shape
def test_limits_in_time_end_both(shape: Shape) -> None:
    settings = Settings(policy="round-robin", hedge_ratio=0.5, samples_warm=0, first_token_s=0.2)

    async def test() -> None:
        async with FakeEngine() as a, FakeEngine() as b, shape(a, b, settings=settings) as served:
            await save_up(served, a, b)
            a.script = b.script = silence
            answer = await ask(served.port, post(chat(stream=True)))
            assert (answer.status, answer.code) == (504, "timeout")
            assert (len(a.requests), len(b.requests)) == (1, 1)
            await served.until_idle()
            served.assert_nothing_left()

    run(test())


@each_shape
def test_a_stream_that_won_is_an_ordinary_stream_from_then_on(shape: Shape) -> None:
    """It breaks off, and the client is told."""

    async def breaks(wire: Wire) -> None:
        wire.send(SSE_HEAD + chunk(delta("one")))
        await asyncio.sleep(0.02)
        wire.reset()

    async def test() -> None:
        async with FakeEngine() as a, FakeEngine() as b, shape(a, b, settings=SETTINGS) as served:
            await save_up(served, a, b)
            a.script, b.script = silence, breaks
            answer = await ask(served.port, post(chat(stream=True)))
            if b.requests and not a.requests:  # it was first asked where it breaks
                answer = await ask(served.port, post(chat(stream=True)))
            assert answer.body.startswith(delta("one"))
            assert b"answer_broke_off" in answer.body
            assert b"[DONE]" not in answer.body
            await served.until_idle()
            served.assert_nothing_left()

    run(test())
