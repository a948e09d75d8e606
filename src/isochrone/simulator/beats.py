"""Heartbeats and scrapes of simulated instances, each instance at moments of its own within the interval."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from isochrone.nouns.events import Observed, Probed, Verdict
from isochrone.nouns.instant import MILLISECOND, SECOND, nanoseconds
from isochrone.simulator.host import Host

if TYPE_CHECKING:
    from isochrone.simulator.run import Simulation


class Beats:
    """Of all instances of one simulation."""

    def __init__(self, simulation: Simulation, seed: int) -> None:
        self.simulation = simulation
        self._chance = random.Random(f"driver {seed}")
        plan = simulation.plan
        self._beat_s = plan.settings.heartbeat_interval_s / plan.gateways
        self._scrape_s = plan.settings.scrape_interval_s / plan.gateways
        """Gateways take turns."""

    def begin(self, host: Host) -> None:
        """The instance has joined: it is scraped now, and then at every interval."""
        simulation = self.simulation
        self._scrape(host)
        simulation.at(simulation.now + self._within(self._beat_s), self._beat, host)
        simulation.at(simulation.now + self._within(self._scrape_s), self._scrape_again, host)

    def _within(self, interval_s: float) -> int:
        return round(self._chance.random() * interval_s * SECOND) + MILLISECOND

    def _beat(self, what: object) -> None:
        assert isinstance(what, Host)
        simulation = self.simulation
        if not _gone(what):
            simulation.feed(Probed(what.id, what.verdict))
            simulation.at(simulation.now + nanoseconds(self._beat_s), self._beat, what)

    def _scrape_again(self, what: object) -> None:
        assert isinstance(what, Host)
        simulation = self.simulation
        if not _gone(what):
            self._scrape(what)
            simulation.at(simulation.now + nanoseconds(self._scrape_s), self._scrape_again, what)

    def _scrape(self, host: Host) -> None:
        if host.verdict is Verdict.OK:
            self.simulation.feed(Observed(host.id, host.snapshot(), self.simulation.now))


def _gone(host: Host) -> bool:
    return host.withdrawn and not host.sent
