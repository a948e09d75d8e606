"""Two thousand streams and a hundred whole answers, while engines are killed, stopped, drained and come back."""

import asyncio
import random
from pathlib import Path

from tests.support.disturbed import CONFIG, wave
from tests.support.emulated import emulated
from tests.support.running import run
from tests.support.service import serving

WAVE = 200


def test_two_thousand_streams_are_as_if_nothing_had_been(tmp_path: Path) -> None:
    run(_waves(tmp_path, 2000, True, random.Random(11)), limit_s=1500)


def test_a_hundred_whole_answers_are_as_if_nothing_had_been(tmp_path: Path) -> None:
    run(_waves(tmp_path, 100, False, random.Random(12)), limit_s=300)


async def _waves(folder: Path, requests: int, stream: bool, chance: random.Random) -> None:
    """So many requests in waves; in each of them an engine is killed, one stopped and one drained."""
    with emulated(folder, 5) as (whole, *engines):
        instances = [{"url": engine.url, "engine": "vllm"} for engine in engines]
        async with serving(**CONFIG, instances=instances) as service:
            while any(view.state != "ready" for view in service.cluster.instances()):
                await asyncio.sleep(0.05)
            for first in range(0, requests, WAVE):
                numbers = range(first, min(first + WAVE, requests))
                await wave(service, engines, whole, numbers, stream, chance)
            gateway = service.gateway
            assert service.cluster.in_flight() == 0
            assert gateway.kept.held_bytes == 0
            assert gateway.brain.faults == 0
            again = sum(len(record.tries) > 1 for record in service.cluster.decisions(requests))
            assert again >= min(requests, 1000) // 20, "the faults have hit something"
            print(f"{requests} answers as ever; {gateway.kept.resumed} continued, {again} of the last tried again")
