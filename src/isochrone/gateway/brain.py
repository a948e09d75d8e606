"""Where events go in and commands come out: the gateway's side of the cluster's door.

The cluster never calls back. It is handed one event at a time and returns commands, which are carried out here at once.
Carrying one out may raise the next event (a dispatch to a pool that is full ends in that very call), so events that
come up meanwhile wait in line: `Cluster.handle` is never entered twice, and the stack does not grow.

One loop timer stands for all of the cluster's deadlines. It is only ever moved forward: a timer that rings too early
costs one comparison, a cancelled one costs more.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from isochrone.gateway import clock
from isochrone.nouns.commands import Abort, Command, Dispatch, Record
from isochrone.nouns.decision import Decision
from isochrone.nouns.errors import ApiError
from isochrone.nouns.events import Arrived, Ended, Event, Outcome, Woke
from isochrone.nouns.instant import SECOND, Instant
from isochrone.nouns.request import Request

TIMER_S_MIN = 0.001
"""Shortest wait of the timer: the loop counts in milliseconds, and a deadline that stays behind must not spin."""

log = logging.getLogger("isochrone.gateway")

INTERNAL_ERROR = ApiError(
    500, "server_error", "internal_error", "The gateway failed on this request; its log says why."
)


class Door(Protocol):
    """What the brain needs of `isochrone.cluster.Cluster`."""

    def handle(self, now: Instant, event: Event) -> Sequence[Command]: ...

    def next_deadline(self) -> Instant | None: ...


class Party(Protocol):
    """Whoever carries out what the cluster decides about one request: an `Exchange`."""

    request: Request

    def dispatch(self, command: Dispatch) -> None: ...

    def fail(self, error: ApiError | None) -> None: ...

    def abort(self, command: Abort) -> None: ...

    def recorded(self) -> None: ...

    def sweep(self, now: Instant) -> None: ...

    def give_up(self, error: ApiError) -> None: ...

    def grant(self, lines: bytes) -> None: ...

    def said_tokens(self) -> int: ...


class Mind(Protocol):
    """What the data path asks of whoever decides: a `Brain` here, or a `BrainLink` to one in another process."""

    now: Instant
    requests: dict[str, Party]
    attempts: dict[int, Party]
    records: list[Callable[[Decision], None]]
    unrecorded: list[Callable[[str], None]]
    faults: int

    def submit(self, event: Event) -> None: ...

    def knows(self, request: str) -> bool: ...

    def fault(self, what: str) -> None: ...

    def close(self) -> None: ...


class Brain:
    """Hands events to the cluster and its commands to the exchanges."""

    def __init__(self, cluster: Door) -> None:
        self.cluster = cluster
        self.now: Instant = clock.now()
        """The instant of the last event; good enough for whoever is called from a command."""
        self.requests: dict[str, Party] = {}
        """Open requests by id: bounded by the listener's `connections_max` times `pipelined_max`."""
        self.attempts: dict[int, Party] = {}
        """Attempts in flight: one for each open request, or two (`rivals.py`)."""
        self.records: list[Callable[[Decision], None]] = []
        """Sinks of decision records: access log, decision log."""
        self.unrecorded: list[Callable[[str], None]] = []
        """Called with a request that ends without a record, because the cluster failed on it."""
        self.faults = 0
        """Exceptions caught here, each one a bug of ours: shown as a metric, logged with its traceback."""
        self._waiting: deque[Event] = deque()
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for: Instant = 0
        self._closed = False

    def submit(self, event: Event) -> None:
        """Hand one event in and carry out what comes of it, now, or after the event that is being handled."""
        waiting = self._waiting
        if self._busy:
            waiting.append(event)
            return
        self._busy = True
        self._step(event)
        while waiting:
            self._step(waiting.popleft())
        self._busy = False
        deadline = self.cluster.next_deadline()
        if deadline is not None and (self._timer is None or deadline < self._armed_for):
            self._arm(deadline)

    def knows(self, request: str) -> bool:
        """The id is in use."""
        return request in self.requests

    def close(self) -> None:
        """Let the timer go; the loop is about to stop."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _step(self, event: Event) -> None:
        """One event and its commands. Raises nothing."""
        self.now = now = clock.now()
        party = self.attempts.pop(event.attempt, None) if isinstance(event, Ended) else None
        try:
            commands = self.cluster.handle(now, event)
        except Exception:
            self.fault(f"the cluster failed on {type(event).__name__}")
            if isinstance(event, Arrived):
                party = self.requests.get(event.request.id)
            if party is not None:  # do not leave the client waiting for a command that will not come
                party.fail(INTERNAL_ERROR)
                for forget in self.unrecorded:
                    forget(party.request.id)
            return
        for command in commands:
            try:
                self._carry_out(command)
            except Exception:
                self.fault(f"carrying out {type(command).__name__} failed")

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, Dispatch):
            self._dispatch(command)
        elif isinstance(command, Record):
            decision = command.decision
            for sink in self.records:
                sink(decision)
            party = self.requests.get(decision.request)
            if party is not None:
                party.recorded()
        elif isinstance(command, Abort):
            party = self.attempts.get(command.attempt)
            if party is not None:
                party.abort(command)
        else:
            party = self.requests.get(command.request)
            if party is not None:
                party.fail(command.error)

    def _dispatch(self, command: Dispatch) -> None:
        party = self.requests.get(command.request)
        if party is None:  # the client left while the event that led here waited in line
            self._waiting.append(Ended(command.attempt, Outcome.CLIENT_LEFT))
            return
        self.attempts[command.attempt] = party
        try:
            party.dispatch(command)
        except Exception:
            self._waiting.append(Ended(command.attempt, Outcome.FAILED, why="the gateway failed"))
            raise

    def fault(self, what: str) -> None:
        """An exception of ours was caught: count it, log it, go on."""
        self.faults += 1
        log.exception("%s", what)

    def _arm(self, deadline: Instant) -> None:
        if self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_for = deadline
        delay_s = max(TIMER_S_MIN, (deadline - clock.now()) / SECOND)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        # A deadline that was announced has passed. It may have moved since, as every event moves it while requests
        # are held; waking up early costs little, never waking up under steady traffic would cost the held ones.
        self._timer = None
        if self.cluster.next_deadline() is not None:
            self.submit(Woke())
