"""A second instance is asked when a first token is late: over sockets, in one process and with relays and a brain."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from msgspec.structs import replace

from isochrone.nouns.decision import Decision
from isochrone.nouns.settings import Settings
from tests.support.fake_engine import SSE_HEAD, FakeEngine, Script, Wire, chunk, delta, json_answer, sse_answer
from tests.support.in_turn import Gate, InTurn
from tests.support.raw_client import RawClient, ask, chat, post
from tests.support.relayed import relayed
from tests.support.running import Served, run, serving

SETTINGS = Settings(policy="round-robin", hedge_ratio=1.0, samples_warm=0)
"""Every request may be asked twice: on a slow machine quick ones are, too."""
DONE = b"data: [DONE]\n\n"
GOOD = sse_answer([delta("one"), delta(" two"), DONE])
WHOLE = delta("one") + delta(" two") + DONE
BROKEN = json_answer({"error": {"message": "broken"}}, 500)
STREAM = post(chat(stream=True), "/v1/chat/completions", "x-request-id: hedged")

Shape = Callable[..., AbstractAsyncContextManager[Served]]
each_shape = pytest.mark.parametrize("shape", [serving, relayed])


async def silence(wire: Wire) -> None:
    await wire.request.peer_closed.wait()


async def head_and_silence(wire: Wire) -> None:
    wire.send(SSE_HEAD)
    await wire.request.peer_closed.wait()


async def cut(wire: Wire) -> None:
    wire.send(SSE_HEAD)
    await wire.turn()
    wire.reset()


async def warm_up(served: Served, *engines: FakeEngine) -> None:
    """Quick requests, from which first tokens are forecast."""
    for engine in engines:
        engine.script = GOOD
    for _ in range(6):
        assert (await ask(served.port, post(chat(stream=True)))).body == WHOLE
    await served.until_idle()
    for engine in engines:
        engine.requests.clear()


def outcomes(record: Decision) -> list[str | None]:
    """Of its attempts."""
    return [one.outcome for one in record.tries]


@each_shape
@pytest.mark.parametrize("first", [silence, head_and_silence])
def test_the_second_answers_and_the_first_is_let_go(first: Script, shape: Shape) -> None:
    async def test() -> None:
        async with FakeEngine() as a, FakeEngine() as b, shape(a, b, settings=SETTINGS) as served:
            await warm_up(served, a, b)
            asked = InTurn(first, GOOD)
            asked.at(a, b)
            answer = await ask(served.port, STREAM)
            assert (answer.status, answer.body) == (200, WHOLE)
            await asked.wires[0].request.peer_closed.wait()
            await served.until_idle()
            record = served.records[-1]
            assert (record.outcome, record.winner) == ("done", asked.where[1].id)
            assert outcomes(record) == ["aborted", "done"]
            served.assert_nothing_left()

    run(test())


@each_shape
def test_the_first_answers_and_the_second_is_let_go(shape: Shape) -> None:
    async def test() -> None:
        async with FakeEngine() as a, FakeEngine() as b, shape(a, b, settings=SETTINGS) as served:
            await warm_up(served, a, b)
            first = Gate(GOOD)
            asked = InTurn(first, silence)
            asked.at(a, b)
            async with RawClient(served.port) as client:
                client.send(STREAM)
                await asked.until(2)
                first.open.set()
                assert (await client.answer()).body == WHOLE
            await asked.wires[1].request.peer_closed.wait()
            await served.until_idle()
            record = served.records[-1]
            assert (record.outcome, record.winner) == ("done", asked.where[0].id)
            assert outcomes(record) == ["done", "aborted"]
            served.assert_nothing_left()

    run(test())


@each_shape
@pytest.mark.parametrize(("script", "outcome"), [(BROKEN, "failed"), (cut, "lost")])
@pytest.mark.parametrize("failing", [0, 1])
def test_where_one_of_two_fails_the_other_one_answers(script: Script, outcome: str, failing: int, shape: Shape) -> None:
    async def test() -> None:
        async with FakeEngine() as a, FakeEngine() as b, shape(a, b, settings=SETTINGS) as served:
            await warm_up(served, a, b)
            both = [Gate(GOOD), Gate(GOOD)]
            both[failing] = Gate(script)
            asked = InTurn(*both)
            asked.at(a, b)
            async with RawClient(served.port) as client:
                client.send(STREAM)
                await asked.until(2)
                both[failing].open.set()
                await served.until_decision("hedged", lambda decision: decision.tries[failing].outcome)
                both[1 - failing].open.set()
                assert (await client.answer()).body == WHOLE
            await served.until_idle()
            record = served.records[-1]
            assert (record.outcome, record.winner) == ("done", asked.where[1 - failing].id)
            assert (outcomes(record)[failing], outcomes(record)[1 - failing]) == (outcome, "done")
            served.assert_nothing_left()

    run(test())


@each_shape
def test_a_client_that_leaves_while_two_are_asked_ends_both(shape: Shape) -> None:
    async def test() -> None:
        async with FakeEngine() as a, FakeEngine() as b, shape(a, b, settings=SETTINGS) as served:
            await warm_up(served, a, b)
            asked = InTurn(silence, silence)
            asked.at(a, b)
            async with RawClient(served.port) as client:
                client.send(STREAM)
                await asked.until(2)
                client.reset()
                for wire in asked.wires:
                    await wire.request.peer_closed.wait()
            await served.until_alone()
            assert served.records[-1].outcome == "client_left"
            served.assert_nothing_left()

    run(test())


@each_shape
def test_limits_in_time_end_both(shape: Shape) -> None:
    settings = replace(SETTINGS, first_token_s=0.5)

    async def test() -> None:
        async with FakeEngine() as a, FakeEngine() as b, shape(a, b, settings=settings) as served:
            await warm_up(served, a, b)
            asked = InTurn(silence, silence)
            asked.at(a, b)
            answer = await ask(served.port, STREAM)
            assert (answer.status, answer.code) == (504, "timeout")
            assert len(asked.wires) == 2
            await served.until_idle()
            served.assert_nothing_left()

    run(test())


@each_shape
def test_a_stream_that_won_is_an_ordinary_stream_from_then_on(shape: Shape) -> None:
    """It breaks off, and the client is told."""

    async def breaks(wire: Wire) -> None:
        wire.send(SSE_HEAD + chunk(delta("one")))
        await wire.turn()
        wire.reset()

    async def test() -> None:
        async with FakeEngine() as a, FakeEngine() as b, shape(a, b, settings=SETTINGS) as served:
            await warm_up(served, a, b)
            InTurn(silence, breaks).at(a, b)
            answer = await ask(served.port, STREAM)
            assert answer.body.startswith(delta("one"))
            assert b"answer_broke_off" in answer.body
            assert b"[DONE]" not in answer.body
            await served.until_idle()
            served.assert_nothing_left()

    run(test())
