"""Answers that are not streamed, over emulated engines that are killed, stopped and drained. `make soak` has more."""

import random
from pathlib import Path

from tests.support.disturbed import CONFIG, wave
from tests.support.emulated import emulated
from tests.support.running import run
from tests.support.service import serving


def test_answers_that_are_not_streamed_are_run_again_whole(tmp_path: Path) -> None:
    async def test() -> None:
        with emulated(tmp_path, 5) as (whole, *engines):
            instances = [{"url": engine.url, "engine": "vllm"} for engine in engines]
            async with serving(**CONFIG, instances=instances) as service:
                while any(view.state != "ready" for view in service.cluster.instances()):
                    await service.gateway.http_get(service.configuration.instances[0].id, "/health", 5.0)
                await wave(service, engines, whole, range(24), False, random.Random(3))
                assert service.cluster.in_flight() == 0

    run(test(), limit_s=90)
