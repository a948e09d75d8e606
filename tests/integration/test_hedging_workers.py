"""Hedging where the brain and the relays are apart: either may die while two instances are asked, and what they say to
each other may cross on its way."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from isochrone.gateway.workers.channel import Channel
from isochrone.gateway.workers.relay import Relay
from isochrone.nouns.commands import Dispatch
from isochrone.nouns.decision import Decision
from tests.integration.test_hedging import BROKEN, DONE, GOOD, SETTINGS, STREAM, WHOLE, outcomes, silence, warm_up
from tests.support.fake_engine import END, SSE_HEAD, FakeEngine, Script, Wire, chunk, delta
from tests.support.in_turn import Gate, InTurn
from tests.support.raw_client import RawClient, ask, chat, post
from tests.support.relayed import Relayed, relayed
from tests.support.running import run
from tests.support.workers import RELAYS, Crew, crew

FILE = {"policy": "round-robin", "retry": {"hedge_ratio": 0.5}}
"""What is as good as SETTINGS where only a file is read."""


@pytest.mark.parametrize("first_wins", [True, False])
def test_without_a_brain_the_first_byte_still_wins(first_wins: bool) -> None:
    async def test() -> None:
        async with FakeEngine() as a, FakeEngine() as b, relayed(a, b, settings=SETTINGS) as served:
            await warm_up(served, a, b)
            first, second = Gate(GOOD), Gate(GOOD)
            asked = InTurn(first, second)
            asked.at(a, b)
            async with RawClient(served.port) as client:
                client.send(STREAM)
                await asked.until(2)
                await served.kill_brain()
                (first if first_wins else second).open.set()
                assert (await client.answer()).body == WHOLE
                await asked.wires[first_wins].request.peer_closed.wait()
                await served.start_brain()
                await served.until_idle()
                record = served.records[-1]
                assert (record.outcome, record.winner) == ("done", asked.where[not first_wins].id)
                served.assert_nothing_left()

    run(test())


@pytest.mark.parametrize("script", [GOOD, BROKEN])
def test_the_next_brain_is_told_of_one_and_the_other_instance_is_let_go(script: Script) -> None:
    async def test() -> None:
        async with FakeEngine() as a, FakeEngine() as b, relayed(a, b, settings=SETTINGS) as served:
            await warm_up(served, a, b)
            first = Gate(script)
            asked = InTurn(first, silence, GOOD)
            asked.at(a, b)
            async with RawClient(served.port) as client:
                client.send(STREAM)
                await asked.until(2)
                await served.kill_brain()
                await served.start_brain()
                await asked.wires[1].request.peer_closed.wait()
                busy = [view.id for view in served.service.cluster.instances() if view.in_flight]
                assert busy == [asked.where[0].id]
                first.open.set()
                assert (await client.answer()).body == WHOLE  # of the first, or where that fails of a third attempt
                await served.until_idle()
                assert served.records[-1].outcome == "done"
                assert outcomes(served.records[-1]) == (["done"] if script is GOOD else ["failed", "done"])
                served.assert_nothing_left()

    run(test())


def test_a_relay_that_dies_takes_both_with_it() -> None:
    async def test() -> None:
        async with FakeEngine() as a, FakeEngine() as b, relayed(a, b, settings=SETTINGS) as served:
            await warm_up(served, a, b)
            asked = InTurn(silence, silence)
            asked.at(a, b)
            relay = served.relays[0]
            async with RawClient(relay.gateway.port) as client:
                client.send(STREAM)
                await asked.until(2)
                assert sorted(view.in_flight for view in served.service.cluster.instances()) == [1, 1]
                await served.kill_relay(relay)
                for wire in asked.wires:
                    await wire.request.peer_closed.wait()
            await served.until_idle()
            assert served.records[-1].outcome == "client_left"
            assert outcomes(served.records[-1]) == ["client_left", "client_left"]
            served.assert_nothing_left()

    run(test())


def test_a_relay_that_stops_tells_the_client_and_ends_both() -> None:
    async def test() -> None:
        async with FakeEngine() as a, FakeEngine() as b, relayed(a, b, settings=SETTINGS) as served:
            await warm_up(served, a, b)
            asked = InTurn(silence, silence)
            asked.at(a, b)
            gateway = served.relays[0].gateway
            async with RawClient(gateway.port) as client:
                client.send(STREAM)
                await asked.until(2)
                stopped = asyncio.create_task(gateway.drain(0.0))
                assert (await client.answer()).code == "draining"
            await stopped
            await served.until_idle()
            assert outcomes(served.records[-1]) == ["client_left", "client_left"]
            served.assert_nothing_left()

    run(test())


def test_a_client_that_leaves_while_there_is_no_brain_ends_both() -> None:
    async def test() -> None:
        async with FakeEngine() as a, FakeEngine() as b, relayed(a, b, settings=SETTINGS) as served:
            await warm_up(served, a, b)
            asked = InTurn(silence, silence)
            asked.at(a, b)
            async with RawClient(served.port) as client:
                client.send(STREAM)
                await asked.until(2)
                await served.kill_brain()
                client.reset()
                for wire in asked.wires:
                    await wire.request.peer_closed.wait()
            await served.start_brain()
            await served.until_idle()
            assert served.records[-1].outcome == "client_left"
            served.assert_nothing_left()

    run(test())


class Held:
    """From the next second Dispatch on, all that the brain says to this relay is on its way until `arrive`."""

    def __init__(self, relay: Relay) -> None:
        channel = relay.link._channel
        assert channel is not None
        self.said = asyncio.Event()
        self._channel, self._take = channel, channel._taken
        self._batches: list[list[Any]] = []
        channel._taken = self._keep

    def _keep(self, channel: Channel, batch: list[Any]) -> None:
        if self._batches or any(isinstance(frame, Dispatch) and frame.hedge for frame in batch):
            self._batches.append(batch)
            self.said.set()
        else:
            self._take(channel, batch)

    def arrive(self) -> None:
        self._channel._taken = self._take
        for batch in self._batches:
            self._take(self._channel, batch)


@dataclass
class Crossing:
    """The first attempt has got on since the brain sent the second Dispatch, which now arrives."""

    served: Relayed
    asked: InTurn
    client: RawClient

    async def ends(self) -> Decision:
        """The record, once nothing is left."""
        await self.served.until_idle()
        record = self.served.records[-1]
        assert record.request == "hedged"
        self.served.assert_nothing_left()
        return record


@asynccontextmanager
async def crossing(
    script: Script, is_news: Callable[[Decision], object], leave: bool = False
) -> AsyncIterator[Crossing]:
    """`script`: of the first attempt. `is_news`: what the brain has to hear before the Dispatch arrives. `leave`: the
    client does, before that."""
    async with FakeEngine() as a, FakeEngine() as b, relayed(a, b, settings=SETTINGS) as served:
        await warm_up(served, a, b)
        first = Gate(script)
        asked = InTurn(first, GOOD)
        asked.at(a, b)
        held = Held(served.relays[0])
        async with RawClient(served.relays[0].gateway.port) as client:
            client.send(STREAM)
            await held.said.wait()
            first.open.set()
            if leave:
                client.reset()
            decision = await served.until_decision("hedged", is_news)
            assert len(decision.tries) == 2
            held.arrive()
            yield Crossing(served, asked, client)


def test_the_first_has_answered_before_the_second_dispatch_arrives() -> None:
    async def test() -> None:
        async with crossing(GOOD, lambda decision: decision.outcome) as made:
            assert (await made.client.answer()).body == WHOLE
            record = await made.ends()
            assert (record.outcome, record.winner) == ("done", made.asked.where[0].id)
            assert len(made.asked.wires) == 1

    run(test())


def test_the_first_has_begun_its_answer_before_the_second_dispatch_arrives() -> None:
    go_on = asyncio.Event()

    async def begins(wire: Wire) -> None:
        wire.send(SSE_HEAD + chunk(delta("one")))
        await go_on.wait()
        wire.send(chunk(delta(" two")) + chunk(DONE) + END)

    async def test() -> None:
        async with crossing(begins, lambda decision: decision.first_token_at) as made:
            go_on.set()
            assert (await made.client.answer()).body == WHOLE
            record = await made.ends()
            assert (record.outcome, record.winner) == ("done", made.asked.where[0].id)
            assert outcomes(record) == ["done", "aborted"]
            assert len(made.asked.wires) == 1

    run(test())


def test_the_first_has_failed_before_the_second_dispatch_arrives() -> None:
    """Then the second is the only one, and its answer counts."""

    async def test() -> None:
        async with crossing(BROKEN, lambda decision: decision.tries[0].outcome) as made:
            assert (await made.client.answer()).body == WHOLE
            record = await made.ends()
            assert (record.outcome, record.winner) == ("done", made.asked.where[1].id)
            assert outcomes(record) == ["failed", "done"]

    run(test())


def test_the_first_has_begun_and_broken_off_before_the_second_dispatch_arrives() -> None:
    """Then the second cannot begin anew what the client has a part of."""

    async def breaks(wire: Wire) -> None:
        wire.send(SSE_HEAD + chunk(delta("one")))
        await wire.turn()
        wire.reset()

    async def test() -> None:
        async with crossing(breaks, lambda decision: decision.tries[0].outcome) as made:
            answer = await made.client.answer()
            assert answer.body.startswith(delta("one"))
            assert b"answer_broke_off" in answer.body
            record = await made.ends()
            assert record.outcome == "failed"
            assert outcomes(record) == ["lost", "aborted"]
            assert len(made.asked.wires) == 1

    run(test())


def test_the_client_has_left_before_the_second_dispatch_arrives() -> None:
    async def test() -> None:
        async with crossing(silence, lambda decision: decision.outcome, leave=True) as made:
            await made.asked.wires[0].request.peer_closed.wait()
            record = await made.ends()
            assert outcomes(record) == ["client_left", "client_left"]
            assert len(made.asked.wires) == 1

    run(test())


def test_processes_that_die_while_two_are_asked(tmp_path: Path) -> None:
    """Real ones: first the brain, then the relays."""

    async def earned(made: Crew, first: Script, *engines: FakeEngine) -> InTurn:
        """Quick requests, so that the next one may have a second attempt; its scripts."""
        for engine in engines:
            engine.script = GOOD
        for _ in range(12):
            assert (await ask(made.port, post(chat(stream=True)))).body == WHOLE
        asked = InTurn(first, silence)
        asked.at(*engines)
        return asked

    async def test() -> None:
        async with FakeEngine() as a, FakeEngine() as b, crew(tmp_path, a, b, **FILE) as made:
            first = Gate(GOOD)
            asked = await earned(made, first, a, b)
            async with RawClient(made.port) as client:
                client.send(STREAM)
                await asked.until(2)
                await made.until_metric("isochrone_instance_in_flight_requests", 2)
                await made.replaced("brain", made.kill("brain"))
                await asked.wires[1].request.peer_closed.wait()
                await made.until_metric("isochrone_instance_in_flight_requests", 1)
                first.open.set()
                assert (await client.answer()).body == WHOLE
                record = await made.until_decided("hedged", "done")
                assert record["winner"] == asked.where[0].id
            asked = await earned(made, silence, a, b)
            async with RawClient(made.port) as client:
                client.send(STREAM)
                await asked.until(2)
                for relay in ("relay-0", "relay-1"):  # one of them has it
                    await made.replaced(relay, made.kill(relay))
                for wire in asked.wires:
                    await wire.request.peer_closed.wait()
                record = await made.until_decided("hedged", "client_left")
                assert [one["outcome"] for one in record["tries"]] == ["client_left", "client_left"]
            await made.until_metric("isochrone_relays", RELAYS)
            await made.assert_nothing_left()

    run(test())
