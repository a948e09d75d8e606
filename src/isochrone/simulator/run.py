"""The driver: a heap of events in integer nanoseconds, one Cluster, twins of engines.

It keeps the promises of `nouns/events.py` as the gateway does: one Arrived for each call, exactly one Ended for each
Dispatch, Progress at most every 32 tokens or half a second, heartbeats and scrapes at their intervals, Woke at the
cluster's deadlines. A call is sent when it is due, whatever became of earlier ones; a session's next turn at the later
of its recorded time and the end of the turn before plus the recorded gap.
"""

import gc
import heapq
import random
from collections import deque
from collections.abc import Callable

from isochrone.cluster import Cluster
from isochrone.nouns.commands import Abort, Dispatch, Record
from isochrone.nouns.events import (
    Arrived,
    Ended,
    Event,
    FirstToken,
    Found,
    ModelsSeen,
    Outcome,
    Probed,
    Progress,
    Verdict,
    Woke,
)
from isochrone.nouns.instant import SECOND, Instant, nanoseconds
from isochrone.nouns.request import Usage
from isochrone.simulator.beats import Beats
from isochrone.simulator.fleet import Member
from isochrone.simulator.gateways import Door, Gateways
from isochrone.simulator.host import DOWN, REPORT_TOKENS, UP, Host, Sent
from isochrone.simulator.mishaps import Mishaps
from isochrone.simulator.plan import Plan, Run
from isochrone.simulator.requests import Requests
from isochrone.simulator.tally import Tally
from isochrone.simulator.timeline import Timeline
from isochrone.simulator.told_steps import warm_start
from isochrone.simulator.unloaded import whole_s
from isochrone.simulator.workload import Workload, successors
from isochrone.twin.lockstep import LockStep
from isochrone.twin.sequence import TwinRequest

START: Instant = SECOND
SWEEP_NS = SECOND
"""How often deadlines of first tokens are looked at."""
SPREAD_EVERY = 64
"""One decision in so many has the spread of its forecasts worked out."""
MANY_INSTANCES = 200
"""From here on streams tell of their progress a quarter as often: it is half the cost, and there are samples enough."""
OVERTIME_NS = 4 * 3600 * SECOND
"""A run is given up so long after the last call was due: something is stuck."""

Handler = Callable[[object], None]


class Simulation:
    """One workload on one cluster."""

    def __init__(self, plan: Plan, workload: Workload, seed: int = 0) -> None:
        self.plan = plan
        self.settings = plan.settings
        self.calls = workload.calls
        self.block_tokens = workload.block_tokens
        self.now: Instant = START
        self.cluster = self._door(seed)
        self.tally = Tally(len(self.calls))
        self.hosts: dict[str, Host] = {}
        self._engines: dict[int, LockStep] = {}
        """Those of several ranks, by number."""
        self.sent: dict[int, Sent] = {}
        self.said_tokens: dict[int, int] = {}
        """Call -> tokens of its answer that its client has; only for calls that have lost an attempt."""
        self._heap: list[tuple[Instant, int, Handler, object]] = []
        self._entries = 0
        self._left = len(self.calls)
        self._next = successors(self.calls)
        follows = set(self._next.values())
        self._opening = iter([number for number in range(len(self.calls)) if number not in follows])
        self._waiting_first: deque[tuple[Instant, int]] = deque()
        """Deadlines of first tokens, in order of dispatch."""
        self._requests = self.requests(workload.block_tokens, seed)
        self._mishaps = Mishaps(self)
        self._report_tokens = REPORT_TOKENS * (4 if len(plan.fleet.members) >= MANY_INSTANCES else 1)
        self.timeline: Timeline | None = None
        self._beats = Beats(self, seed)
        self._longest = max((one.prompt_tokens + one.output_tokens for one in self.calls), default=1)

    def _door(self, seed: int) -> Door:
        plan = self.plan
        ties = [f"ties {seed} of gateway {number}" for number in range(plan.gateways)]
        if plan.gateways == 1:
            ties = [f"ties {seed}"]
        doors = [Cluster(plan.settings, random.Random(chance)) for chance in ties]
        if plan.told_steps is not None:
            told = warm_start(plan.fleet, self.block_tokens, plan.told_steps, seed)
            for door in doors:
                door.restore(told)
        if plan.gateways == 1:
            return doors[0]
        return Gateways(doors, random.Random(f"gateways {seed}"), plan.sticky)

    def requests(self, block_tokens: int, seed: int) -> Requests:
        """How calls are put to the cluster."""
        plan = self.plan
        return Requests(block_tokens, seed, plan.objective, plan.told, plan.fleet.reference)

    # -- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> Run:
        """Until every call is over."""
        for member in self.plan.fleet.members:
            self.join(self.host(len(self.hosts), member))
        self._mishaps.schedule(self.plan.faults)
        self._expect_next()
        self.at(self.now + SWEEP_NS, self._sweep)
        last = START + (self.calls[-1].at if self.calls else 0)
        if self.plan.samples:
            self.timeline = Timeline(max(1, (last - START) // self.plan.samples))
            self.at(self.now, self._sample)
        was_on = gc.isenabled()
        gc.disable()  # nothing here makes cycles, and a collector that looks at millions of live objects costs a third
        try:
            self._loop(last + OVERTIME_NS)
        finally:
            if was_on:
                gc.enable()
        return self._result()

    def _loop(self, latest: Instant) -> None:
        heap, cluster = self._heap, self.cluster
        while self._left:
            deadline = cluster.next_deadline()
            if deadline is not None and deadline < heap[0][0]:
                self.now = max(self.now, deadline)
                self.feed(WOKE)
                continue
            self.now, _, handler, what = heapq.heappop(heap)
            if self.now > latest:
                raise RuntimeError(f"{self._left} calls are not over {OVERTIME_NS // SECOND} s after the last was due")
            handler(what)

    def at(self, when: Instant, handler: Handler, what: object = None) -> None:
        self._entries += 1
        heapq.heappush(self._heap, (when, self._entries, handler, what))

    def _result(self) -> Run:
        hosts = self.hosts.values()
        return Run(
            self.tally,
            (self.now - START) / SECOND,
            sum(host.preemptions + host.engine.preemptions for host in hosts),
            sum(host.engine.prefix_hit_tokens for host in hosts),
            sum(host.engine.prefix_query_tokens for host in hosts),
            self.timeline,
            self.notes(),
        )

    def notes(self) -> list[str]:
        """What sets the run apart from an everyday one."""
        notes = self.plan.fleet.notes
        if self._report_tokens != REPORT_TOKENS:
            notes.append(f"progress is told every {self._report_tokens} tokens")
        if self.plan.gateways > 1:
            how = "a session keeps to one" if self.plan.sticky else "each request to any of them"
            notes.append(f"{self.plan.gateways} gateways, {how}; they know of each other only by their scrapes")
        return notes

    # -- calls --------------------------------------------------------------------------------------------------------

    def _expect_next(self, _: object = None) -> None:
        number = next(self._opening, None)
        if number is not None:
            self.at(max(self.now, START + self.calls[number].at), self._arrive, number)

    def _arrive(self, what: object) -> None:
        assert isinstance(what, int)
        self._expect_next()
        self.begin(what)

    def begin(self, what: object) -> None:
        """Send a call."""
        assert isinstance(what, int)
        self.tally.due[what] = self.now
        self.feed(Arrived(self._requests.request(str(what), self.calls[what])))

    def _recorded(self, record: Record) -> None:
        decision = record.decision
        number = int(decision.request)
        host = self.hosts.get(decision.winner) if decision.winner else None
        self.tally.over(number, decision, self.now, host.number if host is not None else -1)
        if number % SPREAD_EVERY == 0:
            forecasts = [one.forecast_e2e_s for one in self.cluster.candidates(decision)]
            known = [forecast for forecast in forecasts if forecast is not None]
            if known:
                self.tally.spreads.append(max(known) - min(known))
        self.said_tokens.pop(number, None)
        self.release_next(number)

    def release_next(self, number: int) -> None:
        """The call is over, whatever became of it: the next turn of its session may come."""
        self._left -= 1
        following = self._next.get(number)
        if following is not None:
            call = self.calls[following]
            self.at(max(START + call.at, self.now + self._gap(number, following)), self.begin, following)

    def _gap(self, before: int, following: int) -> int:
        """Recorded, or what the recorded times leave beyond an unloaded engine's time for the turn before."""
        call, earlier = self.calls[following], self.calls[before]
        if call.gap is not None:
            return call.gap
        took_s = whole_s(self.plan.fleet.reference, earlier.prompt_tokens, earlier.output_tokens)
        return max(0, call.at - earlier.at - nanoseconds(took_s))

    # -- the cluster --------------------------------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        for command in self.cluster.handle(self.now, event):
            self.obey(command)

    def door_of(self, attempt: int) -> Door:
        """The cluster that has sent the attempt."""
        return self.cluster.door_of(attempt) if isinstance(self.cluster, Gateways) else self.cluster

    def obey(self, command: object) -> None:
        """Carry out one command. Refuse and Fail need nothing: the record that comes with them tells it all."""
        if isinstance(command, Dispatch):
            self._dispatch(command)
        elif isinstance(command, Record):
            self._recorded(command)
        elif isinstance(command, Abort):
            self._abort(command)

    def _dispatch(self, command: Dispatch) -> None:
        number = int(command.request)
        host = self.hosts[command.instance]
        before = self.said_tokens.get(number, 0) if command.continues else 0
        sent = Sent(call=number, attempt=command.attempt, host=host, row=None, before=before)
        self.sent[command.attempt] = sent
        if host.mode != UP:
            self._mishaps.turned_away(sent, command.limits)
            return
        if command.limits.first_token_s is not None:
            self._waiting_first.append((self.now + nanoseconds(command.limits.first_token_s), command.attempt))
        self.submit(sent, self.twin_request(sent))

    def twin_request(self, sent: Sent) -> TwinRequest:
        """What the engine is asked for."""
        call, before = self.calls[sent.call], sent.before
        tokens, wanted = call.prompt_tokens + before, call.output_tokens - before
        return TwinRequest(str(sent.call), tokens, wanted, self._requests.hashes(call))

    def submit(self, sent: Sent, request: TwinRequest) -> None:
        """The engine gets it now."""
        sent.host.submit(self.now, request, sent)
        self.wake(sent.host)

    def _abort(self, command: Abort) -> None:
        sent = self.sent.get(command.attempt)
        if sent is None or (command.if_movable and self.delivered(sent) and not self.plan.resumable):
            return
        self.at(self.now, self._call_off, sent)

    def _call_off(self, what: object) -> None:
        assert isinstance(what, Sent)
        self.end(what, Outcome.ABORTED)

    # -- attempts -----------------------------------------------------------------------------------------------------

    def delivered(self, sent: Sent) -> bool:
        """The client has some of the answer."""
        return sent.first or self.said_tokens.get(sent.call, 0) > 0

    def end(self, sent: Sent, outcome: Outcome, status: int = 0) -> None:
        """The attempt is over without a whole answer; nothing where that is known already."""
        if self.sent.pop(sent.attempt, None) is None:
            return
        host, row = sent.host, sent.row
        host.drop(sent, self.now)
        tokens = sent.before + (row.emitted if row is not None else 0)
        delivered = self.delivered(sent)
        if delivered:
            self.said_tokens[sent.call] = tokens
        resumable = delivered and self.plan.resumable and tokens < self.calls[sent.call].output_tokens
        self.feed(Ended(sent.attempt, outcome, delivered, status, None, tokens, resumable=resumable))
        self.wake(host)

    def _sweep(self, _: object) -> None:
        """First tokens that are overdue."""
        line = self._waiting_first
        while line and line[0][0] <= self.now:
            _, attempt = line.popleft()
            sent = self.sent.get(attempt)
            if sent is not None and not sent.first:
                self.end(sent, Outcome.TIMED_OUT)
        self.at(self.now + SWEEP_NS, self._sweep)

    # -- instances ----------------------------------------------------------------------------------------------------

    def join(self, host: Host) -> None:
        self.hosts[host.id] = host
        self.feed(Found(host.spec()))
        self.feed(ModelsSeen(host.id, (host.card(),)))
        self.feed(Probed(host.id, Verdict.OK))
        self._beats.begin(host)

    def host(self, number: int, member: Member) -> Host:
        """An instance that is about to join; it takes contexts as long as the workload needs."""
        context = max(member.profile.max_model_len, self._longest)
        group = self._engines.setdefault(member.engine, LockStep()) if member.engine is not None else None
        return Host(number, member, self.block_tokens, self.now, context, self._report_tokens, group)

    def wake(self, host: Host) -> None:
        """See that the host is looked at when its twin has something to do."""
        at = host.engine.next_event()
        if at is not None and host.wakes_at != at and host.mode not in DOWN:
            host.wakes_at = at
            self.at(max(at, self.now), self._step, (host, at))

    def _step(self, what: object) -> None:
        assert isinstance(what, tuple)
        host, at = what
        if host.wakes_at != at:
            return  # an entry that a later one has replaced
        host.wakes_at = None
        engine = host.engine
        while host.engine is engine and (due := engine.next_event()) is not None and due <= self.now:
            if host.mode in DOWN:
                return
            leap = engine.advance(due)
            if leap is not None:
                for row in leap.told:
                    sent = host.sent.get(row)
                    if sent is not None:
                        self._heard(sent, row.emitted, row.ended, row.cached)
        self.wake(host)

    def _heard(self, sent: Sent, emitted: int, ended: bool, cached: int) -> None:
        """News of one row."""
        if not sent.first:
            sent.first = True
            self.tally.first_token(sent.call, self.now)
            self.feed(FirstToken(sent.attempt))
        elif not ended:
            self.feed(Progress(sent.attempt, emitted))
        if ended:
            assert sent.row is not None
            del self.sent[sent.attempt]
            del sent.host.sent[sent.row]
            tokens = sent.before + emitted
            call = self.calls[sent.call]
            self.tally.cached[sent.call] = min(cached, call.prompt_tokens)
            usage = Usage(call.prompt_tokens, tokens, min(cached, call.prompt_tokens), "stop")
            self.feed(Ended(sent.attempt, Outcome.DONE, True, 200, usage, tokens))

    def _sample(self, _: object) -> None:
        timeline = self.timeline
        assert timeline is not None
        timeline.add((self.now - START) / SECOND, self.hosts.values(), sum(one.depth for one in self.cluster.queues()))
        self.at(self.now + timeline.every_ns, self._sample)


WOKE = Woke()


def simulate(plan: Plan, workload: Workload, seed: int = 0) -> Run:
    """Run one workload on one cluster, whatever its shape."""
    if plan.fleet.paired:
        from isochrone.simulator.pairs import simulate_pairs  # it stands on this module

        return simulate_pairs(plan, workload, seed)
    return Simulation(plan, workload, seed).run()


__all__ = ["Simulation", "simulate"]
