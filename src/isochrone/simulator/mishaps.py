"""Faults as the driver carries them out."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from isochrone.nouns.commands import Limits
from isochrone.nouns.events import Outcome, Withdrawn
from isochrone.nouns.instant import SECOND, Instant, nanoseconds
from isochrone.simulator.faults import MODES, Fault, name_of
from isochrone.simulator.host import DOWN, UP, Host, Sent

if TYPE_CHECKING:
    from isochrone.simulator.run import Simulation

REFUSAL_NS = 200_000
"""A refused connection, or an error answer, is known this much later."""


class Mishaps:
    """Begins faults and ends them."""

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self._start: Instant = simulation.now

    def schedule(self, faults: Sequence[Fault]) -> None:
        """Everything that is to go wrong."""
        for fault in faults:
            self._simulation.at(self._start + round(fault.at * SECOND), self._begin, fault)
            if fault.until is not None:
                self._simulation.at(self._start + round(fault.until * SECOND), self._finish, fault)

    def turned_away(self, sent: Sent, limits: Limits) -> None:
        """A dispatch to an instance that takes nothing."""
        outcome, status, after_ns = {
            "dead": (Outcome.UNREACHABLE, 0, REFUSAL_NS),
            "unreachable": (Outcome.UNREACHABLE, 0, nanoseconds(limits.connect_s)),
            "busy": (Outcome.BUSY, 503, REFUSAL_NS),
            "broken": (Outcome.FAILED, 500, REFUSAL_NS),
            "hung": (Outcome.TIMED_OUT, 0, nanoseconds(limits.first_token_s or 600.0)),
            "wedged": (Outcome.TIMED_OUT, 0, nanoseconds(limits.first_token_s or 600.0)),
        }[sent.host.mode]
        self._simulation.at(self._simulation.now + after_ns, self._end, (sent, outcome, status))

    def _begin(self, what: object) -> None:
        assert isinstance(what, Fault)
        simulation, fault = self._simulation, what
        if fault.fault == "scale-out":
            self._scale_out(fault.count)
            return
        host = self._host(fault)
        if fault.fault in MODES:
            for one in self._struck(host, fault.fault):
                self._enter(one, fault.fault)
        elif fault.fault == "slow":
            host.slow_down(simulation.now, fault.factor)
            simulation.wake(host)
        elif fault.fault == "stale":
            host.stale = True
        elif fault.fault == "cache-cleared":
            host.engine.pool.forget()
        elif fault.fault == "scale-in" and not host.withdrawn:
            host.withdrawn = True
            simulation.feed(Withdrawn(host.id, drain=True))

    def _finish(self, what: object) -> None:
        assert isinstance(what, Fault)
        simulation, fault = self._simulation, what
        if fault.fault in ("scale-out", "scale-in", "cache-cleared"):
            return
        host = self._host(fault)
        if fault.fault in MODES:
            for one in self._struck(host, fault.fault):
                self._recover(one)
        elif fault.fault == "slow":
            host.slow_down(simulation.now, 1.0)
        elif fault.fault == "stale":
            host.stale = False
        simulation.wake(host)

    def _struck(self, host: Host, mode: str) -> list[Host]:
        """The instance, and where it cannot go on the ranks that step with it."""
        if host.group is None or mode not in DOWN:
            return [host]
        return [one for one in self._simulation.hosts.values() if one.group is host.group]

    def _recover(self, host: Host) -> None:
        if host.mode in DOWN:
            for sent in [sent for sent in self._simulation.sent.values() if sent.host is host]:
                self._simulation.end(sent, Outcome.LOST)  # what still waited for the former process
            host.preemptions += host.engine.preemptions
            host.start(self._simulation.now)  # it comes back as a new process
        host.mode = UP

    def _enter(self, host: Host, mode: str) -> None:
        """A new mode; dying or hanging costs what runs there."""
        simulation = self._simulation
        host.mode = mode
        if mode not in DOWN:
            return
        outcome = Outcome.LOST if mode == "dead" else Outcome.TIMED_OUT
        gap_s = 0.0 if mode == "dead" else simulation.settings.gap_s
        for sent in host.give_up_all(simulation.now):
            if gap_s is not None:  # without that limit nobody notices
                simulation.at(simulation.now + nanoseconds(gap_s), self._end, (sent, outcome, 0))

    def _end(self, what: object) -> None:
        assert isinstance(what, tuple)
        sent, outcome, status = what
        self._simulation.end(sent, outcome, status)

    def _scale_out(self, count: int) -> None:
        simulation = self._simulation
        number = len(simulation.hosts)
        for member in simulation.plan.fleet.further(number, count):
            simulation.join(simulation.host(number, member))
            number += 1

    def _host(self, fault: Fault) -> Host:
        ids = [member.id for member in self._simulation.plan.fleet.members]
        return self._simulation.hosts[name_of(fault, ids)]
