"""The whole gateway over fake engines: heartbeats make instances ready, the admin port explains, files are kept."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from isochrone.config.loader import load
from isochrone.gateway.service import Service, StartError
from tests.support import calls
from tests.support.fake_engine import FakeEngine, json_answer
from tests.support.running import run
from tests.support.service import ANSWER, QUICK, ask, complete, serving, state, until

METRICS = b"""\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 100.0
"""


def test_an_instance_becomes_ready_serves_and_is_explained(tmp_path: Path) -> None:
    async def flow() -> None:
        async with FakeEngine() as engine:
            engine.script, engine.metrics = ANSWER, METRICS
            async with serving(engine, access_log=str(tmp_path / "log"), warm_start=str(tmp_path / "warm")) as service:
                await until(service, "/admin/instances", state("ready"))
                await until(service, "/ready", lambda answer: answer.status == 200)
                answer = await complete(service)
                assert answer.status == 200
                request = answer.headers["x-isochrone-request-id"]
                decision = (await ask(service, f"/admin/decisions/{request}")).json()
                assert (decision["winner"], decision["outcome"], decision["prompt_tokens"]) == (engine.id, "done", 5)
                seen = await until(  # two run and one waits there, none of them ours
                    service, "/admin/instances", lambda seen: seen.json()["instances"][0]["foreign_running"] == 3
                )
                (instance,) = seen["instances"]
                assert (instance["engine"], instance["models"]) == ("vllm", {"m": 8192})
                assert (instance["engine_running"], instance["engine_waiting"]) == (2, 1)
                text = (await ask(service, "/metrics")).body.decode()
                for line in (
                    'isochrone_arrivals_total{model="m",route="default"} 1.0',
                    f'isochrone_attempts_total{{instance="{engine.id}",model="m",outcome="done"}} 1.0',
                    f'isochrone_instance_state{{instance="{engine.id}",state="ready"}} 1.0',
                    "isochrone_faults_total 0.0",
                ):
                    assert line in text
        (line,) = (tmp_path / "log").read_text().splitlines()
        assert (json.loads(line)["id"], json.loads(line)["instance"]) == (request, engine.id)
        assert json.loads((tmp_path / "warm").read_text())["format"] == 1

    run(flow())


def test_instances_come_and_go_over_the_admin_port() -> None:
    async def flow() -> None:
        async with FakeEngine() as first, FakeEngine() as second:
            first.script = second.script = ANSWER
            async with serving(first) as service:
                await until(service, "/admin/instances", state("ready"))
                assert (await ask(service, "/admin/instances", "POST", {"url": second.url, "id": "b"})).status == 201
                await until(service, "/admin/instances", state("ready", count=2))
                assert (await ask(service, f"/admin/instances/{first.id}/drain", "POST")).status == 202
                for _ in range(3):
                    assert (await complete(service)).headers["x-isochrone-instance"] == "b"
                assert (await ask(service, f"/admin/instances/{first.id}/undrain", "POST")).status == 202
                await until(service, "/admin/instances", state("ready", count=2))
                assert (await ask(service, "/admin/instances/b", "DELETE")).status == 202
                await until(service, "/admin/instances", lambda seen: len(seen.json()["instances"]) == 1)
                assert (await complete(service)).headers["x-isochrone-instance"] == first.id
                assert b'instance="b"' not in (await ask(service, "/metrics")).body
                asked = second.seen
                await asyncio.sleep(0.05)
                assert second.seen == asked, "a removed instance is not asked any more"

    run(flow())


def test_a_dead_instance_is_ejected_and_comes_back() -> None:
    async def flow() -> None:
        async with FakeEngine() as engine:
            engine.script = ANSWER
            async with serving(engine) as service:
                await until(service, "/admin/instances", state("ready"))
                engine.refuse()
                engine.cut_all()
                await until(service, "/admin/instances", state("ejected"))
                assert (await ask(service, "/ready")).status == 503
                await engine.accept()
                await until(service, "/ready", lambda answer: answer.status == 200)
                assert (await complete(service)).status == 200

    run(flow())


def test_an_engine_without_metrics_is_served_from_our_own_ledger() -> None:
    async def flow() -> None:
        async with FakeEngine() as engine:
            engine.script = ANSWER
            async with serving(engine) as service:
                await until(service, "/admin/instances", state("ready"))
                seen = await until(service, "/admin/instances", lambda seen: seen.json()["instances"][0]["missing"])
                assert "vllm:num_requests_running" in seen["instances"][0]["missing"]
                assert seen["instances"][0]["kv_usage_ratio"] is None
                assert (await complete(service)).status == 200

    run(flow())


def test_outsiders_cannot_make_series(tmp_path: Path) -> None:
    """M-03 over the wire: random models, paths, routes and statuses leave the number of series as it was."""
    chance = random.Random(1)

    async def flow() -> None:
        async with FakeEngine() as engine, serving(engine) as service:
            await until(service, "/admin/instances", state("ready"))

            async def noise() -> None:
                name = f"{chance.random()}"
                engine.script = json_answer({"error": {"message": "no"}}, status=chance.choice([400, 404, 418, 451]))
                await complete(service)
                await complete(service, {"model": name, "prompt": "x"})
                await asyncio.to_thread(calls.get, f"http://127.0.0.1:{service.port}", f"/{name}")
                await asyncio.to_thread(calls.call, f"http://127.0.0.1:{service.port}", "PUT", f"/v1/{name}", {})

            async def series() -> int:
                lines = (await ask(service, "/metrics")).body.splitlines()
                return sum(not line.startswith(b"#") for line in lines)

            for _ in range(5):
                await noise()
            before = await series()
            for _ in range(40):
                await noise()
            assert await series() <= before + 4, "attempt outcomes that had not happened before"

    run(flow())


@pytest.mark.parametrize("where", ["listen", "admin"])
def test_a_taken_port_is_told(where: str) -> None:
    async def flow() -> None:
        async with FakeEngine() as engine:
            service = Service(load(overrides={**QUICK, where: {"port": engine.port}}))
            with pytest.raises(StartError, match=f"{engine.port}"):
                await service.start()
            await service.stop(0.0)

    run(flow())


def test_a_log_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    async def flow() -> None:
        service = Service(load(overrides={**QUICK, "access_log": str(tmp_path / "no" / "log")}))
        with pytest.raises(StartError, match="access_log"):
            await service.start()
        await service.stop(0.0)

    run(flow())


def test_draining_shows_as_not_ready() -> None:
    async def flow() -> None:
        gate = asyncio.Event()

        async def slow(wire: Any) -> None:
            await gate.wait()
            await ANSWER(wire)

        async with FakeEngine() as engine:
            engine.script = slow
            async with serving(engine) as service:
                await until(service, "/ready", lambda answer: answer.status == 200)
                running = asyncio.ensure_future(complete(service))
                await engine.request(1)
                stopping = asyncio.ensure_future(service.stop(10.0))
                await until(service, "/ready", lambda answer: answer.status == 503 and answer.json()["draining"])
                gate.set()
                assert (await running).status == 200, "what ran before the drain ends well"
                await stopping

    run(flow())
