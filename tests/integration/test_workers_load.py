"""Brain and relays die under load, over emulated engines: no stream that keeps its relay loses anything."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.emulated import Emulated, emulated
from tests.support.raw_client import Answer, ask, post
from tests.support.running import run
from tests.support.workers import Crew, crew

STREAMS = 120
TOKENS = 60
MANY, LONG = 30, 200
"""Streams and tokens that are still under way when the third process has been killed."""
DONE = b"data: [DONE]\n\n"


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[list[Emulated]]:
    with emulated(tmp_path, 2) as two:
        yield two


def body(number: int, tokens: int) -> bytes:
    return json.dumps({
        "model": "m", "stream": True, "temperature": 0, "max_tokens": tokens, "ignore_eos": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": f"Question number {number}."}],
    }).encode()  # fmt: skip


async def stream(made: Crew, number: int, tokens: int = TOKENS) -> Answer | None:
    """A whole stream; None where the connection broke."""
    try:
        answer = await ask(made.port, post(body(number, tokens), "/v1/chat/completions", f"x-request-id: s-{number}"))
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return None
    return answer if answer.whole else None


def is_complete(answer: Answer, tokens: int = TOKENS) -> bool:
    """Every token is there, once: as many as were asked for, the end, and a usage that says the same."""
    events = [json.loads(part[6:]) for part in answer.body.removesuffix(DONE).split(b"\n\n") if part]
    pieces = sum(bool(event["choices"] and event["choices"][0]["delta"].get("content")) for event in events)
    return (
        answer.status == 200
        and answer.body.endswith(DONE)
        and events[-1]["usage"]["completion_tokens"] == tokens
        and pieces == tokens
    )


def test_deaths_under_load(engines: list[Emulated], tmp_path: Path) -> None:
    async def test() -> None:
        async with crew(tmp_path, *(engine.url for engine in engines)) as made:
            tasks = []
            for number in range(STREAMS):
                tasks.append(asyncio.create_task(stream(made, number)))
                if number in (30, 70):
                    await made.replaced("brain", made.kill("brain"))
                if number == 100:
                    broken = made.kill("relay-0")
                await asyncio.sleep(0.005)  # arrivals over 0.6 s
            answers = await asyncio.gather(*tasks)
            await made.replaced("relay-0", broken)
            whole = [answer for answer in answers if answer is not None]
            assert 0 < len(whole) < STREAMS  # the clients of one relay have lost it
            assert all(is_complete(answer) for answer in whole)
            again = await asyncio.gather(*(stream(made, number) for number in range(20)))
            assert all(answer is not None and is_complete(answer) for answer in again)
            await made.until_metric("isochrone_instance_in_flight_requests", 0)
            await made.assert_nothing_left()
            assert await made.stop() == 0

    run(test(), 60.0)


def test_streams_resume_under_a_brain_that_never_dispatched_them(engines: list[Emulated], tmp_path: Path) -> None:
    async def test() -> None:
        async with crew(tmp_path, *(engine.url for engine in engines)) as made:
            streams = asyncio.gather(*(stream(made, number, LONG) for number in range(MANY)))
            await made.until_metric("isochrone_instance_decode_requests", MANY)
            await made.replaced("brain", made.kill("brain"))
            await made.until_metric("isochrone_instance_decode_requests", MANY)
            engines[0].kill()
            answers = await streams
            assert all(answer is not None and is_complete(answer, LONG) for answer in answers)
            resumed = [n for n in range(MANY) if len((await made.json(f"/admin/decisions/s-{n}"))["tries"]) == 2]
            assert 0 < len(resumed) < MANY
            await made.until_metric("isochrone_streams_resumed_total", len(resumed))
            await made.assert_nothing_left()

    run(test(), 60.0)
