"""How late this process's event loop runs: a measurement on a busy machine measures the machine."""

import asyncio
import time
from collections import deque

from isochrone.loadgen.report import percentile

TICK_S = 0.01
SAMPLES_MAX = 200_000
"""Half an hour of ticks."""


class LagWatch:
    """Ticks every 10 ms and remembers how late each tick came, in seconds."""

    def __init__(self) -> None:
        self._late: deque[float] = deque(maxlen=SAMPLES_MAX)
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin, on the running loop."""
        self._arm(asyncio.get_running_loop(), time.monotonic() + TICK_S)

    def stop(self) -> None:
        """End; what was seen stays."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    @property
    def p99_s(self) -> float:
        """99th percentile of lateness; 0 before the first tick."""
        return percentile(list(self._late), 0.99) if self._late else 0.0

    def _arm(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._handle = loop.call_at(due, self._tick, loop, due)

    def _tick(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now = time.monotonic()
        self._late.append(max(0.0, now - due))
        self._arm(loop, now + TICK_S)
