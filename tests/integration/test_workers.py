"""`serve --workers`: one gateway of several processes, each of which may die."""

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

from tests.support.fake_engine import FakeEngine, Wire, json_answer
from tests.support.raw_client import Answer, RawClient, ask, chat, get, post
from tests.support.running import run
from tests.support.workers import RELAYS, Crew, Gated, configuration, crew, started

ANSWER = json_answer(
    {"id": "x", "choices": [{"text": "hi"}], "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}}
)
CLIENTS = 16
"""Connections that the kernel spreads over two relays: all on one once in 32,768 runs."""


async def streams(stack: AsyncExitStack, crew: Crew, engine: FakeEngine) -> list[RawClient]:
    """Clients whose streams have begun."""
    clients = [await stack.enter_async_context(RawClient(crew.port)) for _ in range(CLIENTS)]
    for number, client in enumerate(clients):
        client.send(post(chat(stream=True), "/v1/chat/completions", f"x-request-id: stream-{number}"))
    await engine.request(CLIENTS)
    await crew.until_metric("isochrone_instance_decode_requests", CLIENTS)
    return clients


async def rest(client: RawClient) -> Answer | None:
    """The stream to its end; None where the connection broke before it."""
    try:
        answer = await client.answer()
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return None
    return answer if answer.whole else None


def test_two_relays_are_one_gateway(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    tenants = {"anonymous": {"requests_per_minute": 24}}

    async def test() -> None:
        async with FakeEngine() as engine, crew(tmp_path, engine, access_log=str(log), tenants=tenants) as made:
            engine.script = ANSWER
            answers = await asyncio.gather(*(ask(made.port, post(chat())) for _ in range(30)))
            served = [answer for answer in answers if answer.status == 200]
            refused = [answer for answer in answers if answer.status == 429]
            assert (len(served), len(refused)) == (24, 6)  # counted together, whichever relay
            left = sorted(int(answer.headers["x-ratelimit-remaining-requests"]) for answer in served)
            assert left == list(range(24))
            assert {answer.code for answer in refused} == {"rate_limit_exceeded"}
            assert all("retry-after" in answer.headers for answer in refused)
            bad = await ask(made.port, post(b"{", "/v1/chat/completions"))
            assert bad.status == 400
            request = served[0].headers["x-isochrone-request-id"]
            assert (await made.json(f"/admin/decisions/{request}"))["outcome"] == "done"
            assert [card["id"] for card in (await ask(made.port, get("/v1/models"))).json()["data"]] == ["m"]
            await made.until_metric("isochrone_early_refusals_total", 7)
            await made.until_metric("isochrone_relays", RELAYS)
            assert await made.metric("isochrone_arrivals_total") == 24
            for number in range(RELAYS):
                assert await made.metric("isochrone_relay_resident_memory_bytes", f'relay="{number}"') > 0
            await made.assert_nothing_left()
            assert await made.stop() == 0
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert sorted(line["status"] for line in lines) == [200] * 24 + [400] + [429] * 6

    run(test())


def test_the_brain_dies_and_no_stream_loses_a_byte(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(FakeEngine())
            made = await stack.enter_async_context(crew(tmp_path, engine))
            engine.script = gated = Gated()
            clients = await streams(stack, made, engine)
            old = made.kill("brain")
            engine.script = ANSWER
            fresh = await asyncio.gather(*(ask(made.port, post(chat())) for _ in range(CLIENTS)))
            assert [answer.status for answer in fresh] == [200] * CLIENTS  # they waited for the next brain
            await made.replaced("brain", old)
            await made.until_metric("isochrone_instance_in_flight_requests", CLIENTS)  # those that it never dispatched
            assert await made.metric("isochrone_instance_decode_requests") == CLIENTS
            gated.gate.set()
            answers = await asyncio.gather(*(rest(client) for client in clients))
            assert {answer.body if answer else b"" for answer in answers} == {gated.text}
            decision = await made.until_decided("stream-3", "done")
            assert (decision["winner"], decision["output_tokens"]) == (engine.id, 5)
            assert len(engine.requests) == 2 * CLIENTS
            await made.assert_nothing_left()

    run(test())


def test_what_happens_while_there_is_no_brain(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            engines = [await stack.enter_async_context(FakeEngine()) for _ in range(2)]
            made = await stack.enter_async_context(
                crew(tmp_path, *engines, workers={"brain_wait_s_max": 0.3}, policy="round-robin")
            )
            gated, doomed = Gated(), asyncio.Event()

            async def lost(wire: Wire) -> None:
                await doomed.wait()
                wire.reset()

            engines[0].script = engines[1].script = gated
            stream = await stack.enter_async_context(RawClient(made.port))
            stream.send(post(chat(stream=True), "/v1/chat/completions", "x-request-id: stream"))
            await made.until_metric("isochrone_instance_decode_requests", 1)
            engines[0].script = engines[1].script = lost
            moved = await stack.enter_async_context(RawClient(made.port))
            moved.send(post(chat(), "/v1/chat/completions", "x-request-id: moved"))
            await made.until_metric("isochrone_instance_in_flight_requests", 2)

            made.process.send_signal(signal.SIGSTOP)  # nobody starts another one
            old = made.kill("brain")
            await made.until_logged("the brain is away", RELAYS)
            gated.gate.set()
            whole = await rest(stream)
            assert whole is not None
            assert whole.body == gated.text
            refused = await ask(made.port, post(chat()))
            assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "brain_away", "1")
            assert (await ask(made.port, get("/v1/models"))).json()["data"]

            engines[0].script = engines[1].script = ANSWER
            doomed.set()
            left = await stack.enter_async_context(RawClient(made.port))
            left.send(post(chat(), "/v1/chat/completions", "x-request-id: left"))
            left.reset()
            made.process.send_signal(signal.SIGCONT)
            await made.replaced("brain", old)
            assert (await moved.answer()).status == 200  # on the other instance
            assert len((await made.until_decided("moved", "done"))["tries"]) == 2
            assert (await made.until_decided("stream", "done"))["output_tokens"] == 5
            assert (await made.call("/admin/decisions/left")).status == 404
            await made.until_metric("isochrone_early_refusals_total", 1, "brain_away")
            await made.assert_nothing_left()

    run(test())


def test_a_brain_that_hangs_is_replaced(tmp_path: Path) -> None:
    async def test() -> None:
        async with FakeEngine() as engine, crew(tmp_path, engine, workers={"hung_s_max": 2.0}) as made:
            engine.script = ANSWER
            old = made.kill("brain", signal.SIGSTOP)
            answers = await asyncio.gather(*(ask(made.port, post(chat())) for _ in range(CLIENTS)))
            assert [answer.status for answer in answers] == [200] * CLIENTS
            await made.replaced("brain", old)
            await made.until_metric("isochrone_open_requests", 0)
            assert [line for line in made.log if "brain" in line and "hangs" in line]

    run(test())


def test_a_relay_dies_and_takes_only_its_own_clients(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(FakeEngine())
            made = await stack.enter_async_context(crew(tmp_path, engine))
            engine.script = gated = Gated()
            clients = await streams(stack, made, engine)
            held = list(engine.requests)
            old = made.kill("relay-0")
            await made.replaced("relay-0", old)
            broken = 0
            while not broken or await made.metric("isochrone_instance_in_flight_requests") != CLIENTS - broken:
                broken = sum(received.peer_closed.is_set() for received in held)
                await asyncio.sleep(0.01)
            assert 0 < broken < CLIENTS
            await made.until_metric("isochrone_relays", RELAYS)
            gated.gate.set()
            answers = await asyncio.gather(*(rest(client) for client in clients))
            assert [answer.body for answer in answers if answer] == [gated.text] * (CLIENTS - broken)
            for n, answer in enumerate(answers):  # the brain hears a moment after the client has it
                await made.until_decided(f"stream-{n}", "done" if answer else "client_left")
            engine.script = ANSWER
            fresh = await asyncio.gather(*(ask(made.port, post(chat())) for _ in range(CLIENTS)))
            assert [answer.status for answer in fresh] == [200] * CLIENTS
            await made.assert_nothing_left()

    run(test())


def test_sigterm_lets_streams_end_first(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(FakeEngine())
            made = await stack.enter_async_context(crew(tmp_path, engine, warm_start=str(tmp_path / "warm")))
            engine.script = gated = Gated()
            clients = await streams(stack, made, engine)
            stopped = asyncio.create_task(made.stop())
            while (await made.call("/ready")).status != 503:
                await asyncio.sleep(0.01)
            assert (await made.json("/ready"))["draining"] is True
            while not await refuses(made.port):
                await asyncio.sleep(0.01)
            gated.gate.set()
            answers = await asyncio.gather(*(rest(client) for client in clients))
            assert {answer.body if answer else b"" for answer in answers} == {gated.text}
            assert await stopped == 0
            assert json.loads((tmp_path / "warm").read_text())["format"] == 1
            assert not [line for line in made.log if "WARNING" in line or "ERROR" in line], "".join(made.log)

    run(test())


def test_ctrl_c_reaches_all_and_means_the_same(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(FakeEngine())
            made = await stack.enter_async_context(crew(tmp_path, engine))
            engine.script = gated = Gated()
            clients = await streams(stack, made, engine)
            os.killpg(made.process.pid, signal.SIGINT)  # as a terminal does
            while (await made.call("/ready")).status != 503:
                await asyncio.sleep(0.01)
            gated.gate.set()
            answers = await asyncio.gather(*(rest(client) for client in clients))
            assert {answer.body if answer else b"" for answer in answers} == {gated.text}
            assert await asyncio.to_thread(made.process.wait, 30) == 0

    run(test())


def test_a_second_signal_cuts(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(FakeEngine())
            made = await stack.enter_async_context(crew(tmp_path, engine))
            engine.script = Gated()
            clients = await streams(stack, made, engine)
            made.process.send_signal(signal.SIGTERM)
            while (await made.call("/ready")).status != 503:
                await asyncio.sleep(0.01)
            made.process.send_signal(signal.SIGTERM)
            assert await asyncio.gather(*(rest(client) for client in clients)) == [None] * CLIENTS
            assert await asyncio.to_thread(made.process.wait, 30) == 0

    run(test())


def test_without_a_supervisor_the_others_drain_and_end(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(FakeEngine())
            made = await stack.enter_async_context(crew(tmp_path, engine))
            engine.script = gated = Gated()
            clients = await streams(stack, made, engine)
            children = made.pids("")
            assert len(children) == RELAYS + 1
            made.process.kill()
            gated.gate.set()
            answers = await asyncio.gather(*(rest(client) for client in clients))
            assert {answer.body if answer else b"" for answer in answers} == {gated.text}
            while any(Path(f"/proc/{pid}").exists() for pid in children):
                await asyncio.sleep(0.01)

    run(test())


async def refuses(port: int) -> bool:
    try:
        async with RawClient(port):
            return False
    except ConnectionRefusedError:
        return True


def test_a_reload_reaches_every_relay_and_the_next_ones(tmp_path: Path) -> None:
    async def asked(made: Crew) -> set[int]:
        answers = await asyncio.gather(*(ask(made.port, post(chat().replace(b'"m"', b'"alias"'))) for _ in range(16)))
        return {answer.status for answer in answers}

    async def test() -> None:
        async with AsyncExitStack() as stack:
            first, second = [await stack.enter_async_context(FakeEngine()) for _ in range(2)]
            first.script = second.script = ANSWER
            made = await stack.enter_async_context(crew(tmp_path, first))
            assert await asked(made) == {404}
            made.file.write_text(configuration(second.url, models={"aliases": {"alias": "m"}}))
            made.process.send_signal(signal.SIGHUP)
            while await asked(made) != {200}:
                await asyncio.sleep(0.01)
            while [view["id"] for view in await made.json_list("/admin/instances", "instances")] != [second.id]:
                await asyncio.sleep(0.01)
            made.file.write_text("policy: [")
            assert (await made.call("/admin/reload", "POST")).status == 400
            assert await asked(made) == {200}
            await made.replaced("relay-1", made.kill("relay-1"))
            assert await asked(made) == {200}  # a new relay is given what is in force, not what is in the file
            made.file.write_text(configuration(second.url, models={"aliases": {"alias": "m"}}))
            added = await made.call("/admin/instances", "POST", {"url": first.url, "id": "added"})
            assert added.status == 201
            assert (await made.call(f"/admin/instances/{second.id}/drain", "POST")).status == 202
            await made.replaced("brain", made.kill("brain"))
            assert await asked(made) == {200}  # what an operator has said outlives the brain
            states = {view["id"]: view["state"] for view in await made.json_list("/admin/instances", "instances")}
            assert states == {second.id: "draining", "added": "ready"}
            await made.assert_nothing_left()

    run(test())


def test_who_cannot_start_says_why_once(tmp_path: Path) -> None:
    async def test() -> None:
        file = tmp_path / "isochrone.yaml"
        file.write_text(configuration("http://127.0.0.1:1", access_log=str(tmp_path / "no" / "log")))
        made = Crew(started(file), file)
        try:
            assert await asyncio.to_thread(made.process.wait, 30) == 1
        finally:
            await asyncio.to_thread(made.end)
        assert len([line for line in made.log if line.startswith("Error: access_log:")]) == 1, "".join(made.log)

    run(test())
