"""An overload in which one of four engines is killed every 20 s, for three minutes: clients see whole answers, and 429
or 503 with Retry-After, and nothing else."""

import asyncio
import json
import random
from collections import Counter
from pathlib import Path

from tests.support.disturbed import PATHS
from tests.support.emulated import Emulated, emulated
from tests.support.raw_client import Answer, ask, post
from tests.support.running import run
from tests.support.service import serving

LASTS_S = 180.0
CALLS_PER_S = 14.0
"""Nearly twice what four engines of 8 slots serve at some 65 ms a step; 600 tokens a second are little work for the
machine that the test runs on."""
KILL_EVERY_S = 20.0
DOWN_S = 3.0
ENGINE = ("--max-num-seqs", "8", "--slowdown", "8")
CONFIG = {
    "heartbeat": {"interval_s": 2.0, "timeout_s": 5.0},
    "scrape": {"interval_s": 1.0},
    "queue": {"requests_max": 100},
}


def kind(answer: Answer) -> str:
    """How it looks to the client."""
    if answer.status in (429, 503) and int(answer.headers["retry-after"]) >= 1:
        return "told to come back"
    if answer.status != 200 or not answer.whole:
        return f"status {answer.status}, whole {answer.whole}: {answer.body[:200]!r}"
    if not answer.body.endswith(b"data: [DONE]\n\n") or b'"error"' in answer.body:
        return f"broke off: {answer.body[-300:]!r}"
    return "answered"


def body(number: int, chance: random.Random) -> bytes:
    asked: dict[str, object] = {"model": "m", "stream": True, "max_tokens": chance.randint(20, 100), "ignore_eos": True}
    text = f"Question number {number}. " * chance.randint(1, 40)
    asked |= {"prompt": text} if number % 2 else {"messages": [{"role": "user", "content": text}]}
    return json.dumps(asked).encode()


async def killing(engines: list[Emulated]) -> int:
    """Until cancelled; how often, by the last count."""
    number = 0
    while True:
        await asyncio.sleep(KILL_EVERY_S - DOWN_S)
        engine = engines[number % len(engines)]
        engine.kill()
        await asyncio.sleep(DOWN_S)
        engine.start()
        number += 1


def test_nobody_sees_more_of_it_than_please_come_back(tmp_path: Path) -> None:
    chance = random.Random(5)

    async def test() -> None:
        loop = asyncio.get_running_loop()
        with emulated(tmp_path, 4, ENGINE) as engines:
            instances = [{"url": engine.url, "engine": "vllm"} for engine in engines]
            async with serving(**CONFIG, instances=instances) as service:
                while any(view.state != "ready" for view in service.cluster.instances()):
                    await asyncio.sleep(0.05)
                killer = asyncio.ensure_future(killing(engines))
                asked, begun = [], loop.time()
                while loop.time() - begun < LASTS_S:
                    request = post(body(len(asked), chance), PATHS[len(asked) % 2])
                    asked.append(asyncio.ensure_future(ask(service.port, request)))
                    await asyncio.sleep(chance.expovariate(CALLS_PER_S))
                answers = await asyncio.gather(*asked)
                killer.cancel()
                kinds = Counter(kind(answer) for answer in answers)
                print(kinds, "continuations:", service.gateway.kept.resumed)
                assert set(kinds) == {"answered", "told to come back"}, kinds
                assert kinds["answered"] > 1000
                assert service.gateway.kept.resumed > 0
                assert service.cluster.in_flight() == 0

    run(test(), limit_s=600)
