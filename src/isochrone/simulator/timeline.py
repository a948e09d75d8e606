"""Load and memory of every instance over time, for plots."""

from collections.abc import Iterable

from isochrone.simulator.host import Host

HOSTS_MAX = 64
"""Instances whose lines are kept; a plot of more shows nothing."""


class Timeline:
    """A point every so often."""

    def __init__(self, every_ns: int) -> None:
        self.every_ns = every_ns
        self.at_s: list[float] = []
        self.held: list[int] = []
        """Requests in the gateway's queue."""
        self.running: dict[str, list[int]] = {}
        """By instance: requests in the engine, waiting ones included."""
        self.kv_usage: dict[str, list[float]] = {}

    def add(self, at_s: float, hosts: Iterable[Host], held: int) -> None:
        points = len(self.at_s)
        self.at_s.append(at_s)
        self.held.append(held)
        for host in hosts:
            if host.id not in self.running:
                if len(self.running) >= HOSTS_MAX:
                    continue
                self.running[host.id] = [0] * points
                self.kv_usage[host.id] = [0.0] * points
            self.running[host.id].append(len(host.engine.running) + len(host.engine.waiting))
            self.kv_usage[host.id].append(round(host.engine.kv_usage_ratio, 4))
