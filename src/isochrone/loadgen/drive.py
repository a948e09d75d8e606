"""Drives a client: replays a workload in open loop, or keeps a number of calls in flight in closed loop."""

import asyncio
import time
from collections.abc import Callable, Iterator

from isochrone.loadgen.calls import Call, Result
from isochrone.loadgen.client import Client
from isochrone.loadgen.workload import Turn, Workload

LEAD_S = 0.1
"""Time to set up all sessions before the first one is due."""


async def replay(client: Client, load: Workload, ended: Callable[[], None] = lambda: None) -> list[Result]:
    """Send every turn at its time; returns the results that count, one for each counted turn, when all have ended.

    A turn that failed does not end its session: every policy is asked the same questions. `ended` is called per turn.
    """
    start = time.monotonic() + LEAD_S
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_session(client, session, start, ended)) for session in load.sessions]
    return [result for task in tasks for result in task.result()]


async def _session(client: Client, turns: tuple[Turn, ...], start: float, ended: Callable[[], None]) -> list[Result]:
    counted: list[Result] = []
    previous_end = start
    for turn in turns:
        release = max(start + turn.at_s, previous_end + turn.gap_s)
        while (early := release - time.monotonic()) > 0:  # timers may fire up to a millisecond early
            await asyncio.sleep(early)
        result = await client.call(turn.call, intended_at=release)
        assert result.ended_at is not None
        previous_end = result.ended_at
        if turn.counted:
            counted.append(result)
        ended()
    return counted


async def closed_loop(client: Client, calls: Iterator[Call], concurrency: int, seconds: float) -> list[Result]:
    """Keep `concurrency` calls in flight for `seconds`, then let the last ones end. Calls must not run out."""
    end = time.monotonic() + seconds
    results: list[Result] = []

    async def lane() -> None:
        while time.monotonic() < end:
            results.append(await client.call(next(calls)))

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(lane())
    return results
