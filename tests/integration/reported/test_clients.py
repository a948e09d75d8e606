"""Reported cases of clients that leave and of time limits: C-01, C-03, C-05, T-01, T-03."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from isochrone.config.driver import RelayLimits
from isochrone.nouns.commands import Dispatch, Limits
from isochrone.nouns.events import Arrived
from isochrone.nouns.instant import SECOND
from isochrone.nouns.settings import Settings
from tests.support.fake_engine import DONE, SSE_HEAD, FakeEngine, Wire, chunk, delta, json_answer, sse_answer
from tests.support.raw_client import RawClient, ask, chat, get, post
from tests.support.rig import Rig
from tests.support.running import run, serving

ANSWER = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
TOKENS = [delta("one"), delta(" two", "stop")]


async def never(wire: Wire) -> None:
    await wire.request.peer_closed.wait()


# C-01: with `half_close: allow` a client that has sent all it will send still gets its answers.


@pytest.mark.parametrize("streamed", [False, True])
def test_c01_a_half_closed_client_still_gets_its_answers(streamed: bool) -> None:
    async def test() -> None:
        gate = asyncio.Event()

        async def late(wire: Wire) -> None:
            await gate.wait()
            await (sse_answer([*TOKENS, DONE]) if streamed else json_answer(ANSWER))(wire)

        async with FakeEngine() as engine, serving(engine, half_close=True) as served:
            engine.script = late
            async with RawClient(served.port) as client:
                client.send(post(chat(stream=streamed)) + get("/health") + post(chat(stream=streamed)) + b"POST /half")
                client.half_close()
                request = await engine.request(1)
                for _ in range(20):
                    await asyncio.sleep(0)
                assert not request.peer_closed.is_set()
                gate.set()
                assert [(await client.answer()).status for _ in range(3)] == [200] * 3
                assert (await client.answer()).status == 408, "what never came whole"
                assert await client.at_end()
            await served.until_alone()
            served.assert_nothing_left()
            assert [record.outcome for record in served.records] == ["done", "done", "refused"]

    run(test())


@pytest.mark.parametrize("leave", ["half_close", "reset"])
def test_c01_with_half_close_allowed_leaving_is_still_leaving(leave: str) -> None:
    """A connection with nothing due is closed; one that is reset frees the engine."""

    async def test() -> None:
        async with FakeEngine() as engine, serving(engine, half_close=True) as served:
            async with RawClient(served.port) as client:
                if leave == "half_close":
                    client.half_close()
                    assert await client.at_end()
                else:
                    engine.script = never
                    client.send(post(chat()))
                    request = await engine.request(1)
                    client.reset()
                    await request.peer_closed.wait()
            await served.until_alone()
            served.assert_nothing_left()

    run(test())


def test_c03_clients_that_leave_the_queue_never_reach_an_engine() -> None:
    """Two engines with little room, the rest is held; nine of ten of those clients leave, the others go in order."""
    settings = Settings(policy="equal-cost", samples_warm=0, hold_chunks=0.1)

    async def test() -> None:
        gate = asyncio.Event()
        order: list[int] = []

        async def gated(wire: Wire) -> None:
            order.append(int(wire.request.body.partition(b"number ")[2].partition(b" ")[0]))
            await gate.wait()
            await json_answer(ANSWER)(wire)

        async with AsyncExitStack() as stack:
            one, two = [await stack.enter_async_context(FakeEngine()) for _ in range(2)]
            one.script = two.script = gated
            served = await stack.enter_async_context(serving(one, two, settings=settings, longest=None))
            clients = [await stack.enter_async_context(RawClient(served.port)) for _ in range(54)]
            for number, client in enumerate(clients):
                client.send(post(chat(content=f"number {number}" + " x" * 5000)))
                while len(served.gateway.brain.requests) <= number:
                    await asyncio.sleep(0)
            (queue,) = served.gateway.cluster.queues()
            sent = len(clients) - queue.depth
            assert sent <= 4
            while len(order) < sent:
                await asyncio.sleep(0)
            staying = clients[sent::10]
            for client in clients[sent:]:
                if client not in staying:
                    client.close()
            while served.gateway.cluster.queues()[0].depth != len(staying):
                await asyncio.sleep(0)
            assert len(order) == sent
            gate.set()
            for client in (*clients[:sent], *staying):
                assert (await client.answer()).status == 200
                client.reset()
            assert order[sent:] == list(range(sent, len(clients), 10))
            await served.until_alone()
            outcomes = Counter(record.outcome for record in served.records)
            assert outcomes == {"client_left": len(clients) - len(order), "done": len(order)}
            assert served.gateway.cluster.series.by_route["m", "default"].left == len(clients) - len(order)
            served.assert_nothing_left()

    run(test())


IDS = ["same", "same", "same-and-more", "", "x" * 10_000, 'quo"te', "a b", "%0d%0aset-cookie: x"]


def test_c05_ids_that_engines_see_are_ours() -> None:
    """Unique, of one length, none the beginning of another; the client's own is only echoed, where it is plain."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(FakeEngine())
            served = await stack.enter_async_context(serving(engine))
            engine.script = never
            clients = [RawClient(served.port) for _ in IDS]
            for number, (client, name) in enumerate(zip(clients, IDS, strict=True)):
                await stack.enter_async_context(client)
                client.send(post(chat(), "/v1/chat/completions", f"X-Request-Id: {name}"))
                await engine.request(number + 1)
            seen = [received.headers["x-request-id"] for received in engine.requests]
            assert len(set(seen)) == len(IDS)
            assert {len(one) for one in seen} == {32}
            assert not set(seen) & set(IDS)
            clients[0].reset()
            await engine.requests[0].peer_closed.wait()
            assert [received.peer_closed.is_set() for received in engine.requests] == [True] + [False] * (len(IDS) - 1)
            engine.script = json_answer(ANSWER)
            echoed = await ask(served.port, post(chat(), "/v1/chat/completions", "X-Request-Id: mine-1"))
            assert echoed.headers["x-isochrone-request-id"] == "mine-1"
            record = served.records[-1]
            assert engine.requests[-1].headers["x-request-id"].endswith(f"{record.tries[0].attempt:016x}")
            for client in clients:
                client.reset()
            await served.until_alone()
            served.assert_nothing_left()

    run(test())


# T-01 and T-03.


@pytest.mark.parametrize("streamed", [False, True])
def test_t01_five_minutes_to_the_first_byte_pass_by_default(streamed: bool) -> None:
    """320 s, on a clock of our own: the relay's sweep at the defaults ends nothing."""

    async def test() -> None:
        gate = asyncio.Event()

        async def late(wire: Wire) -> None:
            await gate.wait()
            await (sse_answer([*TOKENS, DONE]) if streamed else json_answer(ANSWER))(wire)

        async with FakeEngine() as engine, serving(engine, limits=RelayLimits(), settings=Settings()) as served:
            engine.script = late
            asking = asyncio.ensure_future(ask(served.port, post(chat(stream=streamed))))
            await engine.request(1)
            (exchange,) = served.gateway.brain.requests.values()
            exchange.sweep(exchange.dispatched_at + 320 * SECOND)
            for connection in served.gateway.connections:
                connection.sweep(exchange.dispatched_at + 320 * SECOND)
            gate.set()
            assert (await asking).status == 200

    run(test())


def test_t01_every_limit_of_an_engine_can_be_off() -> None:
    rig = Rig(Settings(first_token_s=None, gap_s=None, whole_s=None), engines=1)
    (dispatch,) = rig.cluster.handle(rig.now, Arrived(rig.request("r")))
    assert isinstance(dispatch, Dispatch)
    assert dispatch.limits == Limits(first_token_s=None, gap_s=None, whole_s=None)

    async def test() -> None:
        settings = Settings(first_token_s=None, gap_s=None, whole_s=None)
        async with FakeEngine() as engine, serving(engine, settings=settings) as served:
            engine.script = never
            asking = asyncio.ensure_future(ask(served.port, post(chat(stream=True))))
            await engine.request(1)
            (exchange,) = served.gateway.brain.requests.values()
            exchange.sweep(exchange.dispatched_at + 10**6 * SECOND)
            assert exchange.request.id in served.gateway.brain.requests
            asking.cancel()
            await served.until_idle()

    run(test())


def test_t03_a_connection_lost_without_a_word_ends_at_the_gap() -> None:
    """(e): the engine's machine is gone, nothing comes any more, not even a reset; it is marked for it."""
    settings = Settings(policy="round-robin", gap_s=0.05, failures_suspect=1)

    async def gone(wire: Wire) -> None:
        wire.send(SSE_HEAD + chunk(TOKENS[0]))
        wire.stop_reading()
        await wire.request.peer_closed.wait()

    async def test() -> None:
        async with FakeEngine() as engine, serving(engine, settings=settings) as served:
            engine.script = gone
            answer = await ask(served.port, post(chat(stream=True)))
            assert answer.chunks[0] == TOKENS[0]
            assert b'"error"' in answer.chunks[-1]
            assert b"gap_s" in answer.chunks[-1]
            (view,) = served.gateway.cluster.instances()
            assert (view.state, view.failures) == ("suspect", 1)
            assert served.gateway.pools[engine.id].open == 0

    run(test())
