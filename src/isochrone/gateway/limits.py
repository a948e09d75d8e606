"""The one sweep: every `sweep_s` it looks at all open connections and attempts, instead of a timer for each.

A limit may so be late by one sweep, which is nothing against seconds. The sweep also measures the event loop's lag: how
much later than asked it is called is what every client waits too.
"""

import asyncio
from typing import TYPE_CHECKING

from isochrone.gateway import clock
from isochrone.nouns.instant import SECOND, Instant

if TYPE_CHECKING:
    from isochrone.gateway.app import Gateway

LAG_KEPT = 600
"""Lags remembered: one minute at the default `sweep_s`."""


class Sweep:
    """Calls `sweep` on everything that has limits in time."""

    def __init__(self, gateway: "Gateway", interval_s: float) -> None:
        self.gateway = gateway
        self.interval_s = interval_s
        self.lags_s: list[float] = []
        """How late the last sweeps were, newest at `swept % LAG_KEPT`."""
        self.swept = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due: Instant = 0

    def start(self) -> None:
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def lag_s(self, share: float = 0.99) -> float:
        """The event loop's lag in seconds: a quantile over the last minute."""
        if not self.lags_s:
            return 0.0
        return sorted(self.lags_s)[int(share * (len(self.lags_s) - 1))]

    def _arm(self) -> None:
        self._due = clock.after(clock.now(), self.interval_s)
        self._timer = asyncio.get_running_loop().call_later(self.interval_s, self._run)

    def _run(self) -> None:
        now = clock.now()
        self._note_lag(max(0.0, (now - self._due) / SECOND))
        try:
            for connection in (*self.gateway.connections, *self.gateway.turned_away):
                connection.sweep(now)
            for exchange in tuple(self.gateway.brain.requests.values()):
                exchange.sweep(now)
            for pool in tuple(self.gateway.pools.values()):
                pool.sweep(now)
        except Exception:
            self.gateway.brain.fault("a sweep failed")
        self._arm()

    def _note_lag(self, lag_s: float) -> None:
        if len(self.lags_s) < LAG_KEPT:
            self.lags_s.append(lag_s)
        else:
            self.lags_s[self.swept % LAG_KEPT] = lag_s
        self.swept += 1
