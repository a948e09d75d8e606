"""One /metrics for all: what relays report of themselves, summed up. A counter never goes back when a relay dies."""

import os
import resource
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from isochrone.gateway import gauges
from isochrone.gateway.workers.frames import Report, Rows
from isochrone.observe.families import Family, Row

if TYPE_CHECKING:
    from isochrone.gateway.accesslog import AccessLog
    from isochrone.gateway.app import Gateway

REPORT_S = 1.0
"""How often a relay reports: figures of relays in /metrics are at most so old."""
LAST_REPORTS_MAX = 64
"""Reports of dead relays kept apart; older ones are one sum."""
OWN = frozenset({"isochrone_open_requests"})
"""The brain counts these itself: relays have nothing to add."""
LARGEST = frozenset({"isochrone_event_loop_lag_seconds", "isochrone_draining"})
"""Of these the largest counts, not the sum."""
_PAGE_BYTES = resource.getpagesize()


class Reports:
    """The latest report of each relay, and the last words of dead ones."""

    def __init__(self, gateway: "Gateway") -> None:
        self.running: dict[int, Report] = {}
        """By relay."""
        self._gateway = gateway
        self._last: dict[int, Rows] = {}
        """By process: counters of relays that are gone. 0: of all older ones together."""
        self._counters = {family.name for family in gauges.process_gauges(gateway, None) if family.kind == "counter"}

    def take(self, relay: int, report: Report) -> None:
        """A report came."""
        self.running[relay] = report

    def back(self, pid: int) -> None:
        """The process was gone and is there again, with its counters."""
        self._last.pop(pid, None)

    def gone(self, relay: int, pid: int) -> None:
        """Keep what a relay has counted."""
        report = self.running.pop(relay, None)
        if report is None:
            return
        self._last[pid] = {name: rows for name, rows in report.rows.items() if name in self._counters}
        while len(self._last) > LAST_REPORTS_MAX:
            oldest = next(process for process in self._last if process)
            _add(self._last.setdefault(0, {}), self._last.pop(oldest))

    def families(self, access_log: "AccessLog | None") -> list[Family]:
        """The figures of all processes together, and those of each relay."""
        own = gauges.process_gauges(self._gateway, access_log)
        told = [report.rows for report in self.running.values()]
        return [*(_merged(family, told, self._last.values()) for family in own), *self._relays()]

    def _relays(self) -> Iterator[Family]:
        running = sorted(self.running.items())
        yield Family("isochrone_relays", "gauge", "Relay processes at work (with --workers).", (), [((), len(running))])
        rows: list[Row] = [((str(relay),), report.cpu_s) for relay, report in running]
        yield Family(
            "isochrone_relay_cpu_seconds_total", "counter", "Processor time of a relay process.", ("relay",), rows
        )
        rows = [((str(relay),), report.open_requests) for relay, report in running]
        text = "Requests whose end a relay has not told, or not been told."
        yield Family("isochrone_relay_open_requests", "gauge", text, ("relay",), rows)
        rows = [((str(relay),), report.resident_bytes) for relay, report in running]
        yield Family("isochrone_relay_resident_memory_bytes", "gauge", "Memory of a relay process.", ("relay",), rows)


def report_of(gateway: "Gateway", open_requests: int, more: Rows) -> Report:
    """What this relay has to say of itself. `more` is added to its metrics."""
    rows: Rows = {}
    for family in gauges.process_gauges(gateway, None):
        rows[family.name] = [(labels, float(value)) for labels, value in family.rows if isinstance(value, int | float)]
    _add(rows, more)
    times = os.times()
    return Report(rows, gateway.draining, open_requests, times.user + times.system, resident_bytes())


def resident_bytes() -> int:
    """Memory of this process that is in RAM; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def _merged(own: Family, running: Iterable[Rows], gone: Iterable[Rows]) -> Family:
    if own.name in OWN:
        return own
    sums: dict[tuple[str, ...], float] = {
        labels: float(value) for labels, value in own.rows if isinstance(value, int | float)
    }
    largest = own.name in LARGEST
    for rows in (*running, *gone):
        for labels, value in rows.get(own.name, ()):
            before = sums.get(labels, 0.0)
            sums[labels] = max(before, value) if largest else before + value
    return replace(own, rows=list(sums.items()))


def _add(to: Rows, more: Rows) -> None:
    """Add rows to those with the same labels."""
    for name, rows in more.items():
        sums = dict(to.get(name, ()))
        for labels, value in rows:
            sums[labels] = sums.get(labels, 0.0) + value
        to[name] = list(sums.items())
