"""The gateway as a whole: it drains, speaks TLS, replaces credentials, asks instances, and outlives its own faults."""

import asyncio
import ssl
import subprocess
from random import Random

import pytest

from isochrone.cluster import Cluster
from isochrone.config.driver import Link, Routes, Rule, Tls
from isochrone.gateway.app import Gateway, GatewaySettings
from isochrone.gateway.fetch import FetchError
from isochrone.nouns.events import Arrived, Ended, Event, Outcome, Woke
from isochrone.nouns.settings import Settings
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
from tests.support.running import QUICK, Served, join, run, serving

TOKENS = [delta("one"), delta(" two", "stop")]


class Gated:
    """A stream that waits in its middle until the test opens the gate."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def __call__(self, wire: Wire) -> None:
        wire.send(SSE_HEAD + chunk(TOKENS[0]))
        await self.gate.wait()
        wire.send(chunk(TOKENS[1]) + chunk(DONE) + END)


def test_draining_lets_streams_end_and_takes_nothing_new():
    """U-08: /health fails at once, the listener is closed, open streams end whole, idle connections are closed."""

    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            engine.script = script = Gated()
            async with RawClient(served.port) as streaming, RawClient(served.port) as idle:
                idle.send(get("/health"))
                assert (await idle.answer()).status == 200
                streaming.send(post(chat(stream=True)))
                await streaming.head()
                draining = asyncio.ensure_future(served.gateway.drain(5.0))
                await asyncio.sleep(0)
                assert await idle.at_end()
                with pytest.raises(OSError, match="Connect"):
                    await asyncio.open_connection("127.0.0.1", served.port)
                script.gate.set()
                assert (await streaming.reader.read()).endswith(DONE + b"\r\n" + END)
                await draining
            served.assert_nothing_left()
            assert [record.outcome for record in served.records] == ["done"]

    run(test())


def test_the_drain_has_a_limit_and_cut_streams_are_told():
    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            engine.script = Gated()
            async with RawClient(served.port) as streaming, RawClient(served.port) as waiting:
                streaming.send(post(chat(stream=True)))
                await streaming.head()
                engine.script = _never
                waiting.send(post(chat()))
                await engine.request(2)
                await served.gateway.drain(0.05)
                rest = await streaming.reader.read()
                assert b'"code":"draining"' in rest
                assert rest.endswith(END)
                answer = await waiting.answer()
                assert (answer.status, answer.code) == (503, "draining")
            served.assert_nothing_left()

    run(test())


def test_a_request_that_comes_while_draining_is_refused():
    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            engine.script = script = Gated()
            async with RawClient(served.port) as client:
                client.send(post(chat(stream=True)) + get("/health") + post(chat()))
                await client.head()
                draining = asyncio.ensure_future(served.gateway.drain(5.0))
                await asyncio.sleep(0)
                script.gate.set()
                await client._chunks()
                assert (await client.answer()).code == "draining"
                assert await client.at_end()
                await draining
            assert len(engine.requests) == 1
            served.assert_nothing_left()

    run(test())


async def _never(wire: Wire) -> None:
    await wire.request.peer_closed.wait()


def test_the_instances_own_credentials_replace_the_clients():
    async def test():
        async with FakeEngine() as engine, serving() as served:
            join(served.gateway, engine.id, engine.url, link=Link(bearer="engine-key"))
            await ask(served.port, post(chat(), "/v1/chat/completions", "Authorization: Bearer sk-client"))
            assert engine.requests[0].headers["authorization"] == "Bearer engine-key"
            assert engine.requests[0].head.lower().count(b"authorization") == 1
            assert (await served.gateway.http_get(engine.id, "/v1/models", 1.0)).status == 200

    run(test())


def test_an_instance_behind_tls(tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def test():
        async with FakeEngine(tls=context) as engine, serving() as served:
            engine.script = sse_answer([*TOKENS, DONE])
            url = f"https://localhost:{engine.port}"
            join(served.gateway, "trusted", url, ("m",), link=Link(tls=Tls(ca=str(certificate))))
            for _ in range(2):
                answer = await ask(served.port, post(chat(stream=True)))
                assert answer.body == b"".join([*TOKENS, DONE])
            assert engine.connects == 1
            assert (await served.gateway.http_get("trusted", "/health", 1.0)).status == 200
            join(served.gateway, "unknown", url, ("other",))
            body = chat().replace(b'"m"', b'"other"')
            answer = await ask(served.port, post(body))
            assert answer.status == 502
            assert served.records[-1].tries[0].outcome == "unreachable"
            join(served.gateway, "unchecked", url, ("third",), link=Link(tls=Tls(verify=False)))
            assert (await ask(served.port, post(chat().replace(b'"m"', b'"third"')))).status == 200

    run(test())


def test_asking_an_instance_is_bounded():
    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            get_from = served.gateway.http_get
            engine.metrics = b"# HELP x\nx 1\n"
            answer = await get_from(engine.id, "/metrics", 1.0)
            assert (answer.status, answer.body) == (200, engine.metrics)
            assert answer.headers["content-type"] == "text/plain"
            engine.scripts["/health"] = _never
            with pytest.raises(TimeoutError):
                await get_from(engine.id, "/health", 0.05)
            engine.scripts["/health"] = raw(b"nonsense\r\n\r\n")
            with pytest.raises(FetchError):
                await get_from(engine.id, "/health", 1.0)
            engine.scripts["/health"] = raw(head(200), b"until", b" the end", fin=True)
            assert (await get_from(engine.id, "/health", 1.0)).body == b"until the end"
            engine.scripts["/health"] = raw(head(200, "content-length: 9"), b"cut", fin=True)
            with pytest.raises(ConnectionResetError):
                await get_from(engine.id, "/health", 1.0)
            engine.scripts["/health"] = raw(head(200, "content-length: 9000000"), b"x" * 9_000_000)
            with pytest.raises(FetchError, match="larger"):
                await get_from(engine.id, "/health", 5.0)
            engine.refuse()
            with pytest.raises(OSError, match="onnect"):
                await get_from(engine.id, "/health", 1.0)
            with pytest.raises(OSError, match="no instance"):
                await get_from("nobody", "/health", 1.0)
            while engine.open:
                await asyncio.sleep(0)

    run(test())


def test_route_classes_and_sessions_reach_the_cluster():
    async def test():
        async with FakeEngine() as engine:
            routes = Routes(
                classes=("batch",), rules=(Rule("scoring", path="/score"), Rule("vip", header="X-Team: red*"))
            )
            gateway = Gateway(Cluster(Settings(policy="round-robin"), Random(1)), GatewaySettings(QUICK, routes=routes))
            seen: list[Arrived] = []
            handle = gateway.cluster.handle

            def listening(now: int, event: Event):
                if isinstance(event, Arrived):
                    seen.append(event)
                return handle(now, event)

            gateway.cluster.handle = listening
            join(gateway, engine.id, engine.url)
            await gateway.start("127.0.0.1", 0)
            for path, lines in [
                ("/v1/chat/completions", ()),
                ("/v1/chat/completions", ("x-isochrone-route: batch", "x-session-id: s1")),
                ("/v1/chat/completions", ("x-isochrone-route: made-up", "x-isochrone-session: s2", "x-session-id: s3")),
                ("/v1/chat/completions", ("x-team: red-7",)),
                ("/score", ()),
            ]:
                await ask(gateway.port, post(chat(user="u"), path, *lines))
            objectives = ("x-slo-ttft-ms: 1500", "x-slo-tpot-ms: 50.5", "x-isochrone-sheddable: true")
            await ask(gateway.port, post(chat(), "/v1/chat/completions", *objectives))
            requests = [event.request for event in seen]
            assert [request.route for request in requests[:5]] == ["default", "batch", "other", "vip", "scoring"]
            assert [request.session for request in requests[:4]] == ["u", "s1", "s2", "u"]
            slo = requests[5].slo
            assert (slo.ttft_s, slo.tpot_s, slo.sheddable) == (1.5, 0.0505, True)
            await gateway.close()

    run(test())


def test_a_fault_of_ours_answers_500_and_the_gateway_goes_on():
    async def test():
        async with FakeEngine() as engine, serving(engine) as served:
            gateway, handle = served.gateway, served.gateway.cluster.handle

            def failing_on(kind: type):
                def failing(now: int, event: Event):
                    if isinstance(event, kind):
                        raise RuntimeError("a bug")
                    return handle(now, event)

                return failing

            gateway.cluster.handle = failing_on(Arrived)
            answer = await ask(served.port, post(chat()))
            assert (answer.status, answer.code) == (500, "internal_error")
            gateway.cluster.handle = failing_on(Ended)
            engine.script = json_answer({}, 500)
            assert (await ask(served.port, post(chat()))).status == 500
            gateway.cluster.handle = handle
            engine.script = json_answer({})
            gateway.submit(Ended(_last_attempt(served), Outcome.FAILED))
            assert (await ask(served.port, post(chat()))).status == 200
            assert gateway.brain.faults == 2
            assert not gateway.brain.requests

    run(test())


def _last_attempt(served: Served) -> int:
    return max(served.gateway.cluster._world.flights)


def test_a_deadline_of_the_cluster_wakes_it():
    async def test():
        async with serving() as served:
            brain, woken = served.gateway.brain, asyncio.Event()

            class Waiting:
                deadline: int | None = None

                def handle(self, now: int, event: Event):
                    if isinstance(event, Woke):
                        assert now >= self.deadline
                        self.deadline = None
                        woken.set()
                    return ()

                def next_deadline(self) -> int | None:
                    return self.deadline

            door = Waiting()
            cluster, brain.cluster = brain.cluster, door
            door.deadline = brain.now + 50_000_000
            served.gateway.submit(Ended(1, Outcome.DONE))
            await woken.wait()
            brain.cluster = cluster

    run(test())


def test_the_address_in_use_is_named():
    async def test():
        async with serving() as served:
            other = Gateway(Cluster(Settings(), Random(1)))
            with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{served.port}"):
                await other.start("127.0.0.1", served.port)

    run(test())


def test_the_loops_lag_is_measured():
    async def test():
        async with serving() as served:
            sweep = served.gateway.sweep
            while sweep.swept < 5:
                await asyncio.sleep(0.005)
            assert 0 <= sweep.lag_s() < 5

    run(test())
