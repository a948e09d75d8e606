"""Answers of a gateway whose engines are killed, stopped and drained, against those of an engine left in peace."""

import asyncio
import json
import random
import re
from collections.abc import Awaitable, Callable

from isochrone.gateway.service import Service
from isochrone.nouns.events import Found, Withdrawn
from tests.support.emulated import Emulated
from tests.support.raw_client import Answer, ask, post

TOKENS = 120
PATHS = ("/v1/chat/completions", "/v1/completions")
CONFIG = {
    "policy": "least-request",
    "heartbeat": {"interval_s": 0.5, "timeout_s": 1.0},
    "scrape": {"interval_s": 0.5, "timeout_s": 1.0},
    "retry": {"attempts_max": 4},
    "deadlines": {"silence_s": 1.5, "drain_move_s": 0.1},
}
"""`gap_s` and `first_token_s` stay at minutes: a stopped engine is to be found without them."""


def body(number: int, stream: bool) -> bytes:
    """Chat and completions in turn; every second pair has no bound but the engine's own end."""
    asked: dict[str, object] = {"model": "m", "stream": stream, "temperature": 0, "max_tokens": TOKENS}
    if number % 4 < 2:
        asked |= {"ignore_eos": True}
    elif stream:
        asked |= {"stream_options": {"include_usage": True}}
    text = f"Question number {number}."
    asked |= {"prompt": text} if number % 2 else {"messages": [{"role": "user", "content": text}]}
    return json.dumps(asked).encode()


def said(answer: Answer) -> bytes:
    """Its bytes, less what differs between two requests: id, time, and how much was cached."""
    text = re.sub(rb'"id":\s*"[^"]*"', b"", answer.body)
    text = re.sub(rb',\s*"prompt_tokens_details":\s*\{[^}]*\}', b"", text)
    return re.sub(rb'"created":\s*\d+', b"", text)


async def ask_all(port: int, numbers: range, stream: bool) -> list[Answer]:
    return await asyncio.gather(*(ask(port, post(body(number, stream), PATHS[number % 2])) for number in numbers))


async def disturb(service: Service, engines: list[Emulated], chance: random.Random) -> Callable[[], Awaitable[None]]:
    """Kill one, stop one, drain one, at moments that are drawn. What brings them back is returned."""
    killed, stopped, drained = chance.sample(engines, 3)
    spec = next(one for one in service.configuration.instances if one.url == drained.url)
    await asyncio.sleep(0.2 + chance.random() * 0.5)
    killed.kill()
    await asyncio.sleep(chance.random() * 0.4)
    stopped.stop()
    await asyncio.sleep(chance.random() * 0.4)
    service.gateway.submit(Withdrawn(spec.id, drain=True, keep=True))

    async def back() -> None:
        stopped.go_on()
        service.gateway.submit(Found(spec))
        killed.start()
        await asyncio.to_thread(killed.until_up)
        while any(view.state != "ready" for view in service.cluster.instances()):
            await asyncio.sleep(0.05)

    return back


async def wave(
    service: Service, engines: list[Emulated], whole: Emulated, numbers: range, stream: bool, chance: random.Random
) -> None:
    """One batch of requests through one batch of faults: every answer is as if nothing had been."""
    undisturbed = await ask_all(whole.port, numbers, stream)
    asked = asyncio.ensure_future(ask_all(service.port, numbers, stream))
    back = await disturb(service, engines, chance)
    answers = await asked
    assert [answer.status for answer in answers] == [200] * len(numbers)
    different = [number for number, a, b in zip(numbers, answers, undisturbed, strict=True) if said(a) != said(b)]
    assert different == []
    await back()
