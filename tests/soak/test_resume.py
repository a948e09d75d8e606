"""Two thousand streams and a hundred whole answers, while engines are killed, stopped, drained and come back."""

import asyncio
import random
from pathlib import Path

from tests.support.disturbed import CONFIG, wave
from tests.support.emulated import emulated
from tests.support.running import run
from tests.support.service import serving

WAVE = 200


def test_every_answer_is_as_if_nothing_had_been(tmp_path: Path) -> None:
    chance = random.Random(11)

    async def test() -> None:
        with emulated(tmp_path, 5) as (whole, *engines):
            instances = [{"url": engine.url, "engine": "vllm"} for engine in engines]
            async with serving(**CONFIG, instances=instances) as service:
                while any(view.state != "ready" for view in service.cluster.instances()):
                    await asyncio.sleep(0.05)
                for first in range(0, 2000, WAVE):
                    await wave(service, engines, whole, range(first, first + WAVE), True, chance)
                resumed = service.gateway.kept.resumed
                await wave(service, engines, whole, range(2000, 2100), False, chance)
                assert resumed >= 500
                assert service.cluster.in_flight() == 0
                assert service.gateway.kept.held_bytes == 0
                assert service.gateway.brain.faults == 0
                print(f"2,000 streams, {resumed} continuations, 100 whole answers: none differs")

    run(test(), limit_s=900)
