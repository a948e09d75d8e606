"""The lag watch sees a loop that is held up."""

import asyncio
import time

from isochrone.loadgen.lag import LagWatch


def test_a_blocked_loop_is_late() -> None:
    async def scene() -> float:
        lag = LagWatch()
        lag.start()
        await asyncio.sleep(0)
        time.sleep(0.05)  # holds the loop up on purpose: the thing that is measured
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        lag.stop()
        return lag.p99_s

    assert asyncio.run(scene()) >= 0.035


def test_nothing_seen_is_no_lag() -> None:
    assert LagWatch().p99_s == 0.0
