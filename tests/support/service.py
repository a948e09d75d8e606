"""The whole gateway over fake engines, with intervals of milliseconds, and its two ports asked from a thread."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from isochrone.config.loader import load
from isochrone.gateway.service import Service
from tests.support import calls
from tests.support.calls import Answer
from tests.support.fake_engine import FakeEngine, json_answer

ANSWER = json_answer(
    {"id": "x", "choices": [{"text": "hi"}], "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}}
)
QUICK = {
    "listen": {"port": 0},
    "admin": {"port": 0},
    "heartbeat": {"interval_s": 0.01, "timeout_s": 0.5, "ready_answers": 1},
    "scrape": {"interval_s": 0.01, "models_interval_s": 0.05},
    "limits": {"sweep_s": 0.01},
}
BODY = {"model": "m", "prompt": "hello"}


@asynccontextmanager
async def serving(*engines: FakeEngine, **overrides: Any) -> AsyncIterator[Service]:
    instances = [{"url": engine.url} for engine in engines]
    service = Service(load(overrides={**QUICK, "instances": instances, **overrides}))
    try:
        await service.start()
        yield service
    finally:
        await service.stop(1.0)


async def ask(service: Service, path: str, method: str = "GET", body: object = None) -> Answer:
    return await asyncio.to_thread(calls.call, f"http://127.0.0.1:{service.admin_port}", method, path, body)


async def complete(service: Service, body: object = BODY) -> Answer:
    return await asyncio.to_thread(calls.post, f"http://127.0.0.1:{service.port}", "/v1/completions", body)


async def until(service: Service, path: str, wanted: Any) -> Any:
    """Ask until the answer is as wanted; the test's own limit ends it otherwise."""
    while not wanted(answer := await ask(service, path)):
        await asyncio.sleep(0.005)
    return answer.json()


def state(name: str, *, count: int = 1) -> Any:
    return lambda answer: [one["state"] for one in answer.json()["instances"]].count(name) == count
