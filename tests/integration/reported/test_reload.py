"""F-10: a new configuration while requests run: only current instances are asked, nothing gathers or is dropped."""

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from isochrone.cli.serving import follow
from isochrone.config.loader import load
from isochrone.config.problems import ConfigError
from isochrone.gateway.reload import reload_when_told
from isochrone.gateway.service import Service
from tests.support import service as whole
from tests.support.fake_engine import DONE, END, SSE_HEAD, FakeEngine, Wire, chunk, delta, json_answer
from tests.support.raw_client import RawClient, ask, chat, get, post
from tests.support.running import run

ANSWER = json_answer({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})


class Written:
    """A configuration file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "isochrone.yaml"

    def write(self, *engines: FakeEngine, **more: Any) -> None:
        entries = [{"url": engine.url} for engine in engines]
        self.path.write_text(json.dumps({**whole.QUICK, "instances": entries, **more}))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Service]:
        service = Service(load(self.path), lambda: load(self.path))
        await service.start()
        try:
            yield service
        finally:
            await service.stop(1.0)


async def until_ready(service: Service, *engines: FakeEngine) -> None:
    """These and no others are there, ready, and have told their models."""
    wanted = {engine.id: ("ready", True) for engine in engines}
    while {view.id: (view.state, bool(view.models)) for view in service.cluster.instances()} != wanted:
        await asyncio.sleep(0.002)


def test_f10_twenty_reloads_leave_nothing_behind(tmp_path: Path) -> None:
    file = Written(tmp_path)

    async def test() -> None:
        async with AsyncExitStack() as stack:
            engines = [await stack.enter_async_context(FakeEngine()) for _ in range(6)]
            for engine in engines:
                engine.script = ANSWER
            file.write(*engines[:2])
            service = await stack.enter_async_context(file.serving())
            await until_ready(service, *engines[:2])
            await whole.ask(service, "/ready")
            tasks, sockets = len(asyncio.all_tasks()), 0
            for turn in range(20):
                current = [engines[turn % 6], engines[(turn + 1) % 6]]
                file.write(*current)
                done = await whole.ask(service, "/admin/reload", "POST")
                assert done.status == 200, done.body
                await until_ready(service, *current)
                assert (await ask(service.port, post(chat()))).headers["x-isochrone-instance"] in (
                    engine.id for engine in current
                )
                if turn == 2:
                    sockets = len(os.listdir("/proc/self/fd"))
            assert len(asyncio.all_tasks()) <= tasks + 4
            assert len(os.listdir("/proc/self/fd")) <= sockets + 10
            assert set(service.watch.instances) == {engine.id for engine in current}
            seen = {engine.id: engine.seen for engine in engines}
            while current[0].seen < seen[current[0].id] + 10:
                await asyncio.sleep(0.005)
            for engine in engines:
                if engine not in current:
                    assert engine.seen <= seen[engine.id] + 1, "one may have been under way"
            current[0].gone = True
            current[0].cut_all()
            while not any(view.id == current[0].id and view.state == "ejected" for view in service.cluster.instances()):
                await asyncio.sleep(0.002)

    run(test())


def test_f10_streams_go_on_over_a_reload(tmp_path: Path) -> None:
    """The instance that they run on is no longer in the file: it drains."""
    file = Written(tmp_path)

    async def test() -> None:
        gate = asyncio.Event()

        async def gated(wire: Wire) -> None:
            wire.send(SSE_HEAD + chunk(delta("one")))
            await gate.wait()
            wire.send(chunk(delta(" two", "stop")) + chunk(DONE) + END)

        async with FakeEngine() as old, FakeEngine() as new:
            old.script, new.script = gated, ANSWER
            file.write(old)
            async with file.serving() as service, RawClient(service.port) as client:
                await until_ready(service, old)
                client.send(post(chat(stream=True)))
                await client.head()
                file.write(new)
                reloaded = await service.reload()
                assert (reloaded.added, reloaded.removed) == ([new.id], [old.id])
                while (await ask(service.port, post(chat()))).headers.get("x-isochrone-instance") != new.id:
                    await asyncio.sleep(0.002)
                gate.set()
                chunks, entire = await client._chunks()
                assert entire
                assert chunks[-1].endswith(DONE)
                await until_ready(service, new)

    run(test())


def test_what_a_reload_changes(tmp_path: Path) -> None:
    file = Written(tmp_path)

    async def test() -> None:
        async with FakeEngine() as engine, FakeEngine() as added:
            engine.script = added.script = ANSWER
            file.write(engine, tenants={"anonymous": {"requests_per_minute": 1000}})
            async with file.serving() as service:
                await until_ready(service, engine)
                assert (await whole.ask(service, "/admin/instances", "POST", {"url": added.url})).status == 201
                entry = {"url": engine.url, "weight": 2.5}
                file.write(
                    instances=[entry], tenants={"anonymous": {"requests_per_minute": 1}}, policy="least-request",
                    models={"aliases": {"small": "m"}}, paths=["/v1/mine"], cors={"origins": ["*"]},
                    limits={"sweep_s": 0.02, "body_bytes_max": 1000}, listen={"port": 1}, deadlines={"gap_s": None},
                    scrape={"interval_s": 0.02},
                )  # fmt: skip
                answer = await whole.ask(service, "/admin/reload", "POST")
                done = answer.json()
                assert done["changed"] == [engine.id]
                assert (done["added"], done["removed"]) == ([], [])
                assert done["restart"] == ["listen.port"]
                assert "policy" in done["settings"]
                views = {view.id: view for view in service.cluster.instances()}
                assert views[engine.id].weight == 2.5
                assert added.id in views, "what was added over the API stays"
                assert service.cluster.settings.policy == "least-request"
                assert service.cluster.settings.gap_s is None
                assert [card["id"] for card in (await ask(service.port, get("/v1/models"))).json()["data"]] == [
                    "m", "small",
                ]  # fmt: skip
                assert (await ask(service.port, post(chat(model="small")))).status == 200
                assert (await ask(service.port, post(chat(), "/v1/mine"))).status == 429
                large = await ask(service.port, post(chat(content="x" * 2000)))
                assert (large.status, large.code) == (413, "body_too_large")
                listed = {one["name"]: one["value"] for one in (await _settings(service))}
                assert (listed["limits.body_bytes_max"], listed["policy"]) == (1000, "least-request")

    run(test())


async def _settings(service: Service) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await whole.ask(service, "/admin/settings")).json()["settings"]
    return found


BROKEN = {
    "not YAML": "{",
    "unknown key": '{"polcy": "random"}',
    "unknown policy": '{"policy": "equal-cots"}',
    "no such certificate": '{"listen": {"tls": {"cert": "/nonexistent"}}}',
    "no such authority": '{"instances": [{"url": "https://x", "tls": {"ca": "/nonexistent"}}]}',
    "no such secret": '{"instances": [{"url": "http://x", "credentials": "file:/nonexistent"}]}',
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_changes_nothing(how: str, tmp_path: Path) -> None:
    file = Written(tmp_path)

    async def test() -> None:
        async with FakeEngine() as engine:
            engine.script = ANSWER
            file.write(engine)
            async with file.serving() as service:
                await until_ready(service, engine)
                before = service.configuration
                file.path.write_text(BROKEN[how])
                answer = await whole.ask(service, "/admin/reload", "POST")
                assert (answer.status, answer.json()["error"]["code"]) == (400, "bad_configuration")
                with pytest.raises(ConfigError):
                    await service.reload()
                assert service.configuration is before
                assert (await ask(service.port, post(chat()))).status == 200

    run(test())


def test_a_gateway_without_a_file_says_so() -> None:
    async def test() -> None:
        async with whole.serving() as service:
            answer = await whole.ask(service, "/admin/reload", "POST")
            assert (answer.status, "no configuration file" in str(answer.json())) == (400, True)

    run(test())


def test_sighup_reads_the_file_anew(tmp_path: Path) -> None:
    file = Written(tmp_path)

    async def test() -> None:
        async with FakeEngine() as old, FakeEngine() as new:
            file.write(old)
            async with file.serving() as service:
                await until_ready(service, old)
                following = follow(service, file.path)
                file.write(new)
                os.kill(os.getpid(), signal.SIGHUP)
                await until_ready(service, new)
                following.cancel()
                asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)

    run(test())


def test_a_file_is_read_when_told_and_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "x"
    file.write_text("1")
    reads: list[str] = []

    async def reload() -> Any:
        reads.append(file.read_text() if file.exists() else "")
        raise ConfigError(["bad on purpose"])

    async def test() -> None:
        told = asyncio.Event()
        task = asyncio.ensure_future(reload_when_told(reload, told, file, 0.002))
        quiet = asyncio.ensure_future(reload_when_told(reload, asyncio.Event(), file, None))
        await asyncio.sleep(0.01)
        assert reads == []
        for content in ("22", "333"):
            file.write_text(content)
            while content not in reads:
                await asyncio.sleep(0.001)
        file.unlink()
        while reads[-1] != "":
            await asyncio.sleep(0.001)
        count = len(reads)
        told.set()
        while len(reads) == count:
            await asyncio.sleep(0.001)
        task.cancel()
        quiet.cancel()

    with caplog.at_level(logging.ERROR):
        run(test())
    assert "the configuration stays as it is: bad on purpose" in caplog.text
