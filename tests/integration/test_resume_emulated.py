"""Two hundred streams over emulated engines in processes of their own: one is killed, one stopped, one drained."""

import asyncio
import json
import re
from pathlib import Path

from isochrone.nouns.settings import Settings
from tests.support.emulated import Emulated, emulated
from tests.support.raw_client import Answer, ask, post
from tests.support.running import join, run, serving

STREAMS = 200
TOKENS = 120
PATHS = ("/v1/chat/completions", "/v1/completions")


def body(number: int) -> bytes:
    """Chat and completions in turn; every fourth has a usage event and no bound but the engine's own end."""
    asked: dict[str, object] = {"model": "m", "stream": True, "temperature": 0, "max_tokens": TOKENS}
    if number % 4 < 2:
        asked |= {"ignore_eos": True}
    else:
        asked |= {"stream_options": {"include_usage": True}}
    text = f"Question number {number}."
    asked |= {"prompt": text} if number % 2 else {"messages": [{"role": "user", "content": text}]}
    return json.dumps(asked).encode()


async def stream(port: int, number: int) -> Answer:
    path = PATHS[number % 2]
    return await ask(port, post(body(number), path))


def said(answer: Answer) -> bytes:
    """Bytes of the stream, less what differs between two requests: id, time, and how much was cached."""
    text = re.sub(rb'"id":"[^"]*"', b'"id":""', answer.body)
    text = re.sub(rb',"prompt_tokens_details":\{[^}]*\}', b"", text)
    return re.sub(rb'"created":\d+', b'"created":0', text)


def test_200_streams_are_the_same_whatever_becomes_of_three_engines(
    tmp_path: Path,
) -> None:
    settings = Settings(policy="least-request", first_token_s=2.0, gap_s=0.8, drain_move_s=0.05, attempts_max=4)

    async def test(engines: list[Emulated]) -> None:
        killed, stopped, drained, whole = engines
        undisturbed = await asyncio.gather(*(stream(whole.port, number) for number in range(STREAMS)))
        async with serving(settings=settings) as served:
            for engine in engines:
                join(served.gateway, engine.url, engine.url, kind="vllm")
            streams = asyncio.gather(*(stream(served.port, number) for number in range(STREAMS)))
            await asyncio.sleep(0.5)
            killed.kill()
            await asyncio.sleep(0.2)
            stopped.stop()
            await asyncio.sleep(0.2)
            served.gateway.remove_instance(drained.url)
            answers = await streams
            assert [answer.status for answer in answers] == [200] * STREAMS
            different = [n for n in range(STREAMS) if said(answers[n]) != said(undisturbed[n])]
            assert different == []
            assert served.gateway.kept.resumed >= 20
            served.assert_nothing_left()
            for record in served.records:
                assert record.outcome == "done"
                assert record.output_tokens == record.max_tokens or (record.output_tokens or 0) < TOKENS

    with emulated(tmp_path, 4) as engines:
        run(test(engines), limit_s=60)
