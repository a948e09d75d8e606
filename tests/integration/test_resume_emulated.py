"""Two hundred streams over emulated engines in processes of their own: one is killed, one stopped, one drained."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from isochrone.nouns.settings import Settings
from tests.support.calls import eventually
from tests.support.raw_client import Answer, ask, post
from tests.support.running import join, run, serving

STREAMS = 200
TOKENS = 120
PATHS = ("/v1/chat/completions", "/v1/completions")


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[list[tuple[subprocess.Popen[bytes], str]]]:
    """Four processes with their URLs."""
    files = [tmp_path / f"ready-{number}.json" for number in range(4)]
    command = [sys.executable, "-m", "isochrone.cli.main", "emulate", "--port", "0", "--count", "1", "--model", "m"]
    processes = [
        subprocess.Popen([*command, "--ready-file", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for file in files
    ]
    try:
        eventually(lambda: all(file.exists() for file in files), within_s=30)
        urls = [json.loads(file.read_text())["urls"][0] for file in files]
        yield list(zip(processes, urls, strict=True))
    finally:
        for process in processes:
            process.kill()
            process.wait()


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
    engines: list[tuple[subprocess.Popen[bytes], str]],
) -> None:
    (killed, _), (stopped, _), (_, drained), (_, whole) = engines
    settings = Settings(policy="least-request", first_token_s=2.0, gap_s=0.8, drain_move_s=0.05, attempts_max=4)

    async def test() -> None:
        direct = int(whole.rpartition(":")[2])
        undisturbed = await asyncio.gather(*(stream(direct, number) for number in range(STREAMS)))
        async with serving(settings=settings) as served:
            for _, url in engines:
                join(served.gateway, url, url, kind="vllm")
            streams = asyncio.gather(*(stream(served.port, number) for number in range(STREAMS)))
            await asyncio.sleep(0.5)
            os.kill(killed.pid, signal.SIGKILL)
            await asyncio.sleep(0.2)
            os.kill(stopped.pid, signal.SIGSTOP)
            await asyncio.sleep(0.2)
            served.gateway.remove_instance(drained)
            answers = await streams
            assert [answer.status for answer in answers] == [200] * STREAMS
            different = [n for n in range(STREAMS) if said(answers[n]) != said(undisturbed[n])]
            assert different == []
            assert served.gateway.kept.resumed >= 20
            served.assert_nothing_left()
            for record in served.records:
                assert record.outcome == "done"
                assert record.output_tokens == record.max_tokens or (record.output_tokens or 0) < TOKENS

    run(test(), limit_s=60)
