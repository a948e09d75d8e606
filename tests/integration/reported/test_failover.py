"""Reported cases of health, failover and discovery: F-03 to F-09, F-14, F-15."""

import asyncio
import itertools
import socket
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from isochrone.gateway import names
from isochrone.gateway.service import Service
from isochrone.nouns.events import Arrived, Probed, Verdict
from isochrone.nouns.instant import MILLISECOND, SECOND
from isochrone.nouns.settings import Settings
from tests.support import service as whole
from tests.support.fake_engine import (
    DONE,
    END,
    SSE_HEAD,
    FakeEngine,
    Wire,
    chunk,
    delta,
    head,
    json_answer,
    raw,
    sse_answer,
)
from tests.support.raw_client import RawClient, ask, chat, get, post
from tests.support.rig import Engine, Rig
from tests.support.running import join, run, serving

ANSWER = json_answer({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})
RETRIES = Settings(policy="round-robin", retry_tokens_per_s=1e9, retry_tokens_max=1e9)
TOKENS = [delta("one"), delta(" two", "stop")]


async def never(wire: Wire) -> None:
    await wire.request.peer_closed.wait()


async def until_state(service: Service, instance: str, *states: str) -> None:
    while not any(view.id == instance and view.state in states and view.models for view in service.cluster.instances()):
        await asyncio.sleep(0.002)


def test_f03_a_full_engine_is_busy_and_not_broken() -> None:
    """One engine that takes four at once: a burst of 50, then quiet; the first request after that succeeds."""

    async def test() -> None:
        gate = asyncio.Event()
        running = 0

        async def four_at_once(wire: Wire) -> None:
            nonlocal running
            if running == 4:
                await json_answer({"error": {"message": "full"}}, 503, "retry-after: 7")(wire)
                return
            running += 1
            await gate.wait()
            running -= 1
            await ANSWER(wire)

        async with FakeEngine() as engine, serving(engine, settings=RETRIES) as served:
            engine.script = four_at_once
            burst = [asyncio.ensure_future(ask(served.port, post(chat()))) for _ in range(50)]
            await engine.request(50)
            gate.set()
            answers = await asyncio.gather(*burst)
            statuses = Counter(answer.status for answer in answers)
            assert statuses == {200: 4, 503: 46}
            assert {answer.headers["retry-after"] for answer in answers if answer.status == 503} == {"7"}
            (view,) = served.gateway.cluster.instances()
            assert (view.state, view.failures) == ("ready", 0)
            assert (await ask(served.port, post(chat()))).status == 200
            served.assert_nothing_left()

    run(test())


def test_f04_busy_engines_miss_heartbeats_and_are_served_all_the_same() -> None:
    """Tokens that flow are a sign of life; where all miss at once, the gateway goes on and says so."""

    async def test() -> None:
        over = asyncio.Event()

        async def stream(wire: Wire) -> None:
            wire.send(SSE_HEAD)
            while not over.is_set():
                wire.send(chunk(TOKENS[0] * 40))
                await asyncio.sleep(0.01)
            wire.send(chunk(TOKENS[1] + DONE) + END)

        beats = {"interval_s": 0.25, "timeout_s": 0.1, "ready_answers": 1}
        async with FakeEngine() as one, FakeEngine() as two:
            one.script = two.script = stream
            async with whole.serving(one, two, heartbeat=beats) as service:
                for engine in (one, two):
                    await until_state(service, engine.id, "ready")
                async with RawClient(service.port) as client:
                    client.send(post(chat(stream=True)))
                    busy = (await client.head()).partition("x-isochrone-instance: ")[2].split("\r\n")[0]
                    one.scripts["/health"] = two.scripts["/health"] = never
                    idle = two.id if busy == one.id else one.id
                    seen = set()
                    while not any(view.id == idle and view.state == "ejected" for view in service.cluster.instances()):
                        seen |= {str(view.state) for view in service.cluster.instances() if view.id == busy}
                        await asyncio.sleep(0.005)
                    assert seen == {"ready"}
                    over.set()
                    assert (await client.reader.readuntil(END)).endswith(DONE + b"\r\n" + END)
                await until_state(service, busy, "ejected")
                one.script = two.script = ANSWER
                assert (await ask(service.port, post(chat()))).status == 200
                text = (await whole.ask(service, "/metrics")).body.decode()
                assert 'isochrone_model_in_doubt{model="m"} 1.0' in text

    run(test())


@pytest.mark.parametrize(("verdict", "state"), [(Verdict.TIMEOUT, "ready"), (Verdict.REFUSED, "ejected")])
def test_f04_tokens_excuse_a_late_heartbeat_and_not_a_refused_one(verdict: Verdict, state: str) -> None:
    rig = Rig(Settings(), engines=1)
    rig.feed(Arrived(rig.request("r", output=2000)))
    rig.run(until=3 * SECOND)
    for _ in range(rig.settings.heartbeat_eject_misses):
        rig.feed(Probed("e0", verdict))
    assert [view.state for view in rig.cluster.instances()] == [state]


DEAD = {
    "500": json_answer({"error": {"message": "engine is dead"}}, 500),
    "never answers": never,
    "an empty stream": raw(SSE_HEAD, END),
}


@pytest.mark.parametrize("how", DEAD)
def test_f05_an_engine_that_is_dead_behind_its_health_check_leaves_the_rotation(how: str) -> None:
    settings = Settings(
        policy="round-robin", first_token_s=0.3, retry_tokens_per_s=1e9, retry_tokens_max=1e9, failures_eject=3
    )

    async def test() -> None:
        async with FakeEngine() as bad, FakeEngine() as good, serving(bad, good, settings=settings) as served:
            bad.script, good.script = DEAD[how], sse_answer([*TOKENS, DONE])
            for number in range(60):
                answer = await ask(served.port, post(chat(stream=True)))
                assert answer.body == b"".join([*TOKENS, DONE]), "nothing was delivered, so another one answers"
                if number % 5 == 0:
                    for engine in (bad, good):
                        served.gateway.submit(Probed(engine.id, Verdict.OK))
            trials = len(bad.requests) - settings.failures_eject
            assert 0 <= trials <= 60 / 5, "after a few failures, no more than one for each good heartbeat"
            assert len(bad.requests) <= (10 if how == "never answers" else 15), "rarer where each costs time"
            states = {view.id: view.state for view in served.gateway.cluster.instances()}
            assert states[bad.id] in ("ejected", "probing")
            bad.script = good.script
            before = len(bad.requests)
            for _ in range(40):
                served.gateway.submit(Probed(bad.id, Verdict.OK))
                assert (await ask(served.port, post(chat(stream=True)))).status == 200
            assert len(bad.requests) - before >= 10, "back after a real success"
            served.assert_nothing_left()

    run(test())


@pytest.mark.parametrize("drain", [True, False], ids=["drained", "killed"])
def test_f06_no_request_is_lost_while_instances_come_and_go(drain: bool) -> None:
    """20 instances, one leaves and one joins every 200 ms, 100 requests a second, 10 s of virtual time."""
    settings = Settings(policy="equal-cost", retry_tokens_per_s=1e9, retry_tokens_max=1e9, attempts_max=10)
    rig = Rig(settings, engines=20, step_s=0.01)
    for number in range(1000):
        rig.at(SECOND + number * 10 * MILLISECOND, Arrived(rig.request(f"r{number}", b"p" * 400, output=100)))
    for number in range(50):
        rig.at(SECOND + number * 200 * MILLISECOND, ("withdraw", f"e{number}", drain))
        rig.at(SECOND + number * 200 * MILLISECOND + 1, ("join", Engine(f"e{number + 20}", step_s=0.01), None))
    rig.run()
    rig.check_over()
    assert Counter(rig.ended.values()) == {"done": 1000}
    assert rig.now < 30 * SECOND


def test_f06_over_sockets() -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            engines = [await stack.enter_async_context(FakeEngine()) for _ in range(8)]
            served = await stack.enter_async_context(serving(*engines, settings=RETRIES))
            for engine in engines:
                engine.script = sse_answer([*TOKENS, DONE])
            over = False

            async def churn() -> None:
                for turn in itertools.count():
                    if over:
                        return
                    engine = engines[turn % len(engines)]
                    served.gateway.remove_instance(engine.id, drain=turn % 2 == 0)
                    await asyncio.sleep(0.002)
                    join(served.gateway, engine.id, engine.url)

            churning = asyncio.ensure_future(churn())
            for _ in range(30):
                answers = await asyncio.gather(*(ask(served.port, post(chat(stream=True))) for _ in range(20)))
                for answer in answers:  # whole, or told in the stream that it is not
                    assert answer.status == 200
                    assert answer.body.endswith(DONE) or b'"error"' in answer.chunks[-1]
            over = True
            await churning
            await served.until_idle()
            served.assert_nothing_left()
            assert len(served.records) == 600

    run(test())


def test_f07_when_all_are_gone_it_says_so_and_recovers_with_new_ones() -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            old = [await stack.enter_async_context(FakeEngine()) for _ in range(4)]
            service = await stack.enter_async_context(whole.serving(*old))
            for engine in old:
                engine.script = _first_then_hang
                await until_state(service, engine.id, "ready")
            clients = [await stack.enter_async_context(RawClient(service.port)) for _ in range(60)]
            for client in clients:
                client.send(post(chat(stream=True)))
            for client in clients:
                await client.head()
            for engine in old:
                engine.gone = True
                engine.cut_all()
            for client in clients:
                assert b'"error"' in await client.reader.readuntil(END)
            for engine in old:
                await until_state(service, engine.id, "ejected")
            for _ in range(20):
                answer = await ask(service.port, post(chat()))
                assert answer.status == 503
                assert int(answer.headers["retry-after"]) >= 1
            for name in ("new-1", "new-2"):  # the system may give them a port that an old one had
                engine = await stack.enter_async_context(FakeEngine())
                engine.script = ANSWER
                entry = {"url": engine.url, "id": name}
                added = await whole.ask(service, "/admin/instances", "POST", entry)
                assert added.status == 201
                await until_state(service, name, "ready")
            assert {(await ask(service.port, post(chat()))).status for _ in range(20)} == {200}

    run(test())


async def _first_then_hang(wire: Wire) -> None:
    wire.send(SSE_HEAD + chunk(TOKENS[0]))
    await wire.request.peer_closed.wait()


def test_f08_a_terminating_instance_gets_nothing_new_and_finishes_what_it_has() -> None:
    async def test() -> None:
        gate = asyncio.Event()

        async def gated(wire: Wire) -> None:
            wire.send(SSE_HEAD + chunk(TOKENS[0]))
            await gate.wait()
            wire.send(chunk(TOKENS[1]) + chunk(DONE) + END)

        async with AsyncExitStack() as stack:
            leaving, staying = [await stack.enter_async_context(FakeEngine()) for _ in range(2)]
            leaving.script = gated
            service = await stack.enter_async_context(whole.serving(leaving))
            await until_state(service, leaving.id, "ready")
            clients = [await stack.enter_async_context(RawClient(service.port)) for _ in range(5)]
            for client in clients:
                client.send(post(chat(stream=True, user="a session")))
            for client in clients:
                await client.head()
            await whole.ask(service, "/admin/instances", "POST", {"url": staying.url})
            await until_state(service, staying.id, "ready")
            await whole.ask(service, f"/admin/instances/{leaving.id}/drain", "POST")
            for _ in range(20):
                answer = await ask(service.port, post(chat(user="a session")))
                assert answer.headers["x-isochrone-instance"] == staying.id
            assert len(leaving.requests) == 5
            gate.set()
            for client in clients:
                chunks, entire = await client._chunks()
                assert entire
                assert b"".join(chunks) == b"".join([*TOKENS, DONE])

    run(test())


def test_f09_probes_that_hang_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """One instance drops what is sent to it, the name of another takes for ever: 200 streams end meanwhile."""
    looked_up = asyncio.Event()

    async def slow(host: str, port: int) -> list[str]:
        assert host == "slow.test"
        looked_up.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(names, "lookup", slow)

    async def test() -> None:
        with socket.socket() as hole:
            hole.bind(("127.0.0.1", 0))
            hole.listen(0)
            filling = [socket.socket() for _ in range(3)]  # the kernel drops further SYNs
            for one in filling:
                one.setblocking(False)
                one.connect_ex(hole.getsockname())
            async with FakeEngine() as one, FakeEngine() as two, FakeEngine() as three:
                engines = (one, two, three)
                for engine in engines:
                    engine.script = sse_answer([*TOKENS, DONE])
                urls = [*(engine.url for engine in engines), f"http://127.0.0.1:{hole.getsockname()[1]}"]
                entries = [{"url": url} for url in (*urls, "http://slow.test:8000")]
                beats = {"interval_s": 0.01, "timeout_s": 20.0, "ready_answers": 1}
                async with whole.serving(instances=entries, heartbeat=beats) as service:
                    for engine in engines:
                        await until_state(service, engine.id, "ready")
                    await looked_up.wait()
                    for _ in range(10):
                        answers = await asyncio.gather(
                            *(ask(service.port, post(chat(stream=True))) for _ in range(20)),
                            ask(service.port, get("/health")),
                        )
                        assert {answer.status for answer in answers} == {200}
                    states = [view.state for view in service.cluster.instances()]
                    assert states == ["ready"] * 3 + ["joining"] * 2
            for one in filling:
                one.close()

    run(test())


def test_f14_a_name_is_followed_and_a_failed_lookup_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    answer: list[str] | OSError = ["127.0.0.1"]
    lookups = 0

    async def lookup(host: str, port: int) -> list[str]:
        nonlocal lookups
        lookups += 1
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(names, "lookup", lookup)

    async def test() -> None:
        nonlocal answer
        async with FakeEngine() as a, FakeEngine(host="127.0.0.2", port=a.port) as b:
            a.script = b.script = ANSWER
            limits = {"resolve_s": 0.02, "sweep_s": 0.01}
            entry = {"id": "named", "url": f"http://engine.test:{a.port}"}
            async with whole.serving(instances=[entry], limits=limits) as service:

                async def served_by(engine: FakeEngine) -> None:
                    """All is well, at that address."""
                    taken = len(engine.requests)
                    while (await ask(service.port, post(chat()))).status != 200 or len(engine.requests) == taken:
                        await asyncio.sleep(0.002)

                await served_by(a)
                answer = ["127.0.0.2"]
                a.refuse()
                a.cut_all()
                await served_by(b)
                for following in (["127.0.0.1", "127.0.0.2"], [], OSError("no such name")):  # the first of two refuses
                    answer, before = following, lookups
                    while lookups < before + 3:
                        await asyncio.sleep(0.005)
                    await served_by(b)

    run(test())


def test_f14_no_request_waits_for_a_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when every answer is stale at once: one lookup at a time, and nobody waits for it."""
    lookups = 0
    gate = asyncio.Event()

    async def lookup(host: str, port: int) -> list[str]:
        nonlocal lookups
        lookups += 1
        if lookups > 1:
            await gate.wait()
        return ["127.0.0.1"]

    monkeypatch.setattr(names, "lookup", lookup)

    async def test() -> None:
        async with FakeEngine() as engine, whole.serving(
            instances=[{"id": "named", "url": f"http://engine.test:{engine.port}"}], limits={"resolve_s": 0.0}
        ) as service:  # fmt: skip
            engine.script = raw(head(200, "content-length: 2", "connection: close") + b"{}")  # a connection for each
            await until_state(service, "named", "ready")
            for _ in range(20):
                assert (await ask(service.port, post(chat()))).status == 200
            assert lookups == 2
            gate.set()

    run(test())


@pytest.mark.parametrize("alone", [False, True], ids=["others are ready", "the only one"])
def test_f15_nothing_is_sent_before_the_model_is_loaded(alone: bool) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            loading, other = [await stack.enter_async_context(FakeEngine()) for _ in range(2)]
            loading.script = other.script = ANSWER
            loading.refuse()
            loading.health_status = 503
            service = await stack.enter_async_context(whole.serving(*([loading] if alone else [loading, other])))
            if not alone:
                await until_state(service, other.id, "ready")

            async def all_wait() -> None:
                for _ in range(10):
                    answer = await ask(service.port, post(chat()))
                    assert answer.status == (503 if alone else 200)
                    assert not alone or "retry-after" in answer.headers

            await all_wait()  # it refuses connections
            await loading.accept()
            seen = loading.seen
            while loading.seen < seen + 6:
                await asyncio.sleep(0.005)
            await all_wait()  # it lists its model, and is not well
            assert loading.requests == []
            loading.health_status = 200
            await until_state(service, loading.id, "ready")
            if not alone:
                await whole.ask(service, f"/admin/instances/{other.id}/drain", "POST")
            while (await ask(service.port, post(chat()))).status != 200:
                await asyncio.sleep(0.005)

    run(test())
