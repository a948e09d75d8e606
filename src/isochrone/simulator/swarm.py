"""Hundreds of small runs in which everything goes wrong, each drawn from a seed, with the invariants checked.

`isochrone replay --seed N` runs one of them again and can print every event and command: the same seed gives the same
lines.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from isochrone.nouns.commands import Abort, Dispatch, Fail, Record, Refuse
from isochrone.nouns.events import Arrived, Ended, Event
from isochrone.nouns.instance import State
from isochrone.nouns.request import Slo
from isochrone.nouns.settings import Settings
from isochrone.scheduling import policies
from isochrone.scheduling.parts import PARTS
from isochrone.simulator.faults import FAULTS, Fault
from isochrone.simulator.fleet import Fleet, Member
from isochrone.simulator.requests import TOLD
from isochrone.simulator.run import Plan, Run, Simulation
from isochrone.simulator.workload import Call, Workload
from isochrone.twin.profiles import PROFILES

SPAN_S = 20.0
"""Calls are due and faults begin within this time."""
BLOCK = 16
TAKES = frozenset({State.READY.value, State.SUSPECT.value, State.PROBING.value})


def draw(seed: int) -> tuple[Plan, Workload]:
    """What a seed stands for."""
    chance = random.Random(seed)
    names = policies.names()
    settings = Settings(
        policy="equal-cost" if chance.random() < 0.6 else chance.choice(names),
        shadow=chance.choice([None, *names]),
        hold=chance.random() < 0.9,
        without=frozenset(chance.sample(sorted(PARTS), chance.choice([0, 0, 1, 4]))),
        queue_requests_max=chance.choice([3, 50, 1000]),
        queue_wait_s_max=chance.choice([2.0, 60.0]),
        first_token_s=chance.choice([2.0, 30.0, 600.0]),
        gap_s=chance.choice([2.0, 30.0]),
        samples_warm=chance.choice([0, 10, 50]),
        slots_default=chance.choice([None, 2, 8]),
        slo=chance.choice([None, Slo(1.0, 0.1, True), Slo(2.0, None, False)]),
        heartbeat_interval_s=chance.choice([0.5, 2.0]),
        slow_start_s=chance.choice([0.0, 5.0]),
    )
    members = tuple(
        Member(f"e{number}", PROFILES[chance.choice(sorted(PROFILES))], chance.choice([0.2, 1.0, 1.0, 3.0]))
        for number in range(chance.choice([1, 2, 4, 7]))
    )
    faults = tuple(_fault(chance, len(members)) for _ in range(chance.choice([0, 1, 3, 8])))
    plan = Plan(
        settings, Fleet(members), told=chance.choice(TOLD), faults=faults, resumable=chance.random() < 0.7
    )  # fmt: skip
    calls = _calls(chance)
    plan = replace(plan, gateways=chance.choice([1, 1, 1, 2, 4]), sticky=chance.random() < 0.5)
    return plan, Workload(f"swarm {seed}", calls, BLOCK)


def _calls(chance: random.Random) -> list[Call]:
    calls = []
    for _ in range(chance.choice([20, 120])):
        prompt = chance.choice([1, 40, 700, 6000])
        shared = chance.randrange(prompt // BLOCK + 1)
        family = chance.randrange(4) * 1000
        session = chance.choice([-1, -1, chance.randrange(8)])
        gap = round(chance.random() * 1e9) if session >= 0 and chance.random() < 0.5 else None
        ids = tuple(range(family, family + shared))
        at = round(chance.random() * SPAN_S * 1e9)
        calls.append(Call(at, prompt, chance.choice([1, 20, 200]), chance.choice("ab"), ids, session, gap))
    calls.sort(key=_by_time)
    return calls


def _fault(chance: random.Random, members: int) -> Fault:
    at = chance.random() * SPAN_S
    until = chance.choice([None, at + chance.random() * 10 + 0.01])
    name = chance.choice(sorted(FAULTS))
    if name in ("dead", "hung", "unreachable", "broken", "busy") and until is None:
        until = at + 15.0
    return Fault(at, name, chance.randrange(members), until, chance.choice([2.0, 10.0]), chance.choice([1, 2]))


def _by_time(call: Call) -> int:
    return call.at


@dataclass(slots=True)
class Broken(AssertionError):
    """An invariant that does not hold."""

    what: str

    def __str__(self) -> str:
        return self.what


class Watched(Simulation):
    """A simulation with checkers; `note` is given every event and command as a line."""

    def __init__(self, plan: Plan, workload: Workload, seed: int, note: Callable[[str], None] | None = None) -> None:
        super().__init__(plan, workload, seed)
        self._note = note
        self._last = self.now
        self._open: set[int] = set()
        """Attempts that were dispatched and have not ended."""
        self._answered: set[str] = set()
        """Requests that were refused, failed or recorded."""
        self._arrived: set[str] = set()

    def feed(self, event: Event) -> None:
        _check(self.now >= self._last, "time went back")
        self._last = self.now
        if self._note is not None:
            self._note(f"{self.now} {event}")
        if isinstance(event, Ended):
            _check(event.attempt in self._open, f"attempt {event.attempt} ended twice, or never began")
            self._open.discard(event.attempt)
        elif isinstance(event, Arrived):
            self._arrived.add(event.request.id)
        super().feed(event)

    def obey(self, command: object) -> None:
        if self._note is not None:
            self._note(f"  -> {command if not isinstance(command, Record) else command.decision.request}")
        if isinstance(command, Dispatch):
            self._check_dispatch(command)
            self._open.add(command.attempt)
        elif isinstance(command, Abort):
            pass  # may come late: its attempt may be over
        elif isinstance(command, Refuse | Fail):
            _check(command.request in self._arrived, f"{command.request} was answered and had never come")
        elif isinstance(command, Record):
            request = command.decision.request
            _check(request not in self._answered, f"{request} was recorded twice")
            self._answered.add(request)
        super().obey(command)

    def _check_dispatch(self, command: Dispatch) -> None:
        _check(command.request not in self._answered, f"{command.request} was dispatched after its end")
        _check(command.attempt not in self._open, f"attempt {command.attempt} was given twice")
        states = {view.id: view.state for view in self.door_of(command.attempt).instances()}
        state = states.pop(command.instance)
        if state == State.EJECTED.value:  # fail open: only where there is nobody else
            _check(not TAKES & set(states.values()) - {State.PROBING.value}, f"sent to an ejected one of {states}")
        else:
            _check(state in TAKES, f"sent to an instance that is {state}")

    def check_over(self) -> None:
        """What must hold once all calls are over."""
        _check(len(self._answered) == len(self.calls), "a call left no record")
        _check(not self._open, f"attempts never ended: {sorted(self._open)[:5]}")
        _check(self.cluster.in_flight() == 0, "the cluster thinks that something runs")
        _check(self.cluster.next_deadline() is None, "the cluster waits for something")
        _check(all(queue.depth == 0 for queue in self.cluster.queues()), "a queue is not empty")
        for view in self.cluster.instances():
            left = (view.in_flight, view.context_tokens, view.kv_tokens, view.owed_output_tokens)
            _check(left == (0, 0, 0, 0), f"{view.id}: the ledger has not returned to zero: {left}")
        for host in self.hosts.values():
            _check(not host.sent, f"{host.id}: attempts are left on it")
            _check(host.engine.pool.used == 0, f"{host.id}: KV blocks are left on it")


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


def run_seed(seed: int, note: Callable[[str], None] | None = None) -> Run:
    """One seed; raises Broken where an invariant does not hold."""
    plan, workload = draw(seed)
    simulation = Watched(plan, workload, seed, note)
    run = simulation.run()
    simulation.check_over()
    return run
