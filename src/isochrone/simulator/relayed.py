"""A simulation with all that stands around the core in life: relays that pass bytes, clients that leave, an operator.

`Simulation` counts tokens; here each streamed answer is bytes that go through the splice (`answers.py`), and what an
attempt's end says (is it whole, can it go on elsewhere, how many tokens) is what a relay knows from them.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from isochrone.cluster import Cluster
from isochrone.nouns.commands import Abort, Dispatch
from isochrone.nouns.events import (
    Arrived,
    ClientLeft,
    Configured,
    Ended,
    Event,
    FirstToken,
    Outcome,
    Progress,
    Weighed,
    Withdrawn,
)
from isochrone.nouns.instant import nanoseconds
from isochrone.nouns.request import Slo
from isochrone.nouns.settings import Settings
from isochrone.simulator.answers import StreamedAnswer, Wish
from isochrone.simulator.host import Sent
from isochrone.simulator.plan import Plan
from isochrone.simulator.run import START, Simulation
from isochrone.simulator.workload import Workload


@dataclass(frozen=True, slots=True)
class Client:
    """Who sends a call, and how."""

    tenant: str = "a"
    priority: int = 0
    slo: Slo | None = None
    """Beside what the plan lets every request tell."""
    stream: bool = True
    leaves_after_s: float | None = None
    """From the call on; None: it stays."""
    max_tokens: int | None = None
    exact: bool = True
    event_tokens: int = 1
    wants_usage: bool = False
    resumable: bool = True

    def wish(self, tokens: int) -> Wish:
        return Wish(tokens, self.max_tokens, self.exact, self.event_tokens, self.wants_usage, self.resumable)


@dataclass(frozen=True, slots=True)
class Act:
    """Something that the operator does."""

    at_s: float
    what: str
    """`reload`, `weigh` or `remove`."""
    instance: str
    weight: float
    settings: Settings | None


@dataclass(slots=True)
class Asked:
    """One request as its client and its relay see it."""

    request: str
    answer: StreamedAnswer | None
    """None: not streamed."""
    prompt_tokens: int
    """As the cluster estimates."""
    attempts: list[str] = field(default_factory=list)
    """Instances that it was sent to, in order."""
    open: int | None = None
    """The attempt in flight."""
    gone: bool = False
    """The client has left."""
    over: bool = False
    last: Ended | None = None
    """How its last attempt ended."""

    @property
    def delivered(self) -> bool:
        """Its client has a part of the answer."""
        return self.answer is not None and self.answer.delivered


class Relayed(Simulation):
    """Such a simulation."""

    def __init__(self, plan: Plan, workload: Workload, clients: list[Client], acts: list[Act], seed: int) -> None:
        super().__init__(plan, workload, seed)
        assert isinstance(self.cluster, Cluster)
        self.door: Cluster = self.cluster
        self.clients = clients
        self.asked: dict[str, Asked] = {}
        """By request."""
        self.open: dict[int, Asked] = {}
        """By attempt: those that were dispatched and have not ended."""
        self.on: Counter[str] = Counter()
        """Of those, how many on each instance."""
        self.now_settings = plan.settings
        self._bytes_chance = random.Random(f"bytes {seed}")
        for act in acts:
            self.at(START + nanoseconds(act.at_s), self._operate, act)

    def feed(self, event: Event) -> None:
        """Tell the cluster, in a relay's words."""
        told: Event | None = event
        if isinstance(event, Arrived):
            told = self._arrived(event)
        elif isinstance(event, FirstToken | Progress):
            told = event if self._streamed(event) else None
        elif isinstance(event, Ended):
            told = self._ended(event)
        elif isinstance(event, Configured):
            self.now_settings = event.settings
        if told is not None:
            self.tell(told)

    def tell(self, event: Event) -> None:
        """The event as the cluster gets it."""
        super().feed(event)

    def obey(self, command: object) -> None:
        """Carry out one command."""
        if isinstance(command, Abort):
            self._abort_if_possible(command)
            return
        if isinstance(command, Dispatch):
            self._begin_attempt(command)
        super().obey(command)

    def wrong(self, what: str, request: str) -> None:
        """Something was asked of the relay that makes no sense."""
        raise AssertionError(f"request {request}: {what}")

    def delivered(self, sent: Sent) -> bool:
        return self.asked[str(sent.call)].delivered

    # -- clients -------------------------------------------------------------------------------------------------------

    def _arrived(self, event: Arrived) -> Arrived:
        """The request with what its client adds; and whoever will leave, leaves."""
        number = int(event.request.id)
        client, call = self.clients[number], self.calls[number]
        request = msgspec.structs.replace(
            event.request,
            tenant=client.tenant,
            priority=client.priority,
            slo=client.slo or event.request.slo,
            stream=client.stream,
            max_tokens=client.max_tokens,
        )
        answer = StreamedAnswer(client.wish(call.output_tokens)) if client.stream else None
        self.asked[request.id] = Asked(request.id, answer, self.door.estimate(request)[0])
        if client.leaves_after_s is not None:
            self.at(self.now + nanoseconds(client.leaves_after_s), self._leave, request.id)
        return Arrived(request)

    def _leave(self, what: object) -> None:
        assert isinstance(what, str)
        asked = self.asked[what]
        if not asked.over:
            asked.gone = True
            self.feed(ClientLeft(what))

    # -- attempts ------------------------------------------------------------------------------------------------------

    def _begin_attempt(self, command: Dispatch) -> None:
        asked = self.asked[command.request]
        if asked.answer is not None:
            if fault := asked.answer.begin(command.continues):
                self.wrong(fault, command.request)
            self.said_tokens[int(command.request)] = asked.answer.before
        asked.attempts.append(command.instance)
        asked.open = command.attempt
        self.on[command.instance] += 1
        self.open[command.attempt] = asked

    def _abort_if_possible(self, command: Abort) -> None:
        asked = self.open.get(command.attempt)
        if asked is None:
            return  # it came late: the attempt is over
        answer = asked.answer
        if command.if_movable and answer is not None and answer.delivered and answer.splice.refusal():
            return
        self.at(self.now, self._call_off, self.sent[command.attempt])

    def _streamed(self, event: FirstToken | Progress) -> bool:
        """Tokens come out of the engine. False: of an answer that is not streamed, so that nobody sees them."""
        answer = self.open[event.attempt].answer
        if answer is None:
            return False
        row = self.sent[event.attempt].row
        assert row is not None
        answer.advance(row.emitted)
        return True

    def _ended(self, event: Ended) -> Ended:
        """The end as a relay tells it, which knows bytes."""
        asked = self.open.pop(event.attempt, None)
        if asked is None:
            self.wrong(f"attempt {event.attempt} ended twice, or never began", "?")
        assert asked is not None
        self.on[asked.attempts[-1]] -= 1
        asked.open = None
        outcome = Outcome.CLIENT_LEFT if asked.gone and event.outcome is not Outcome.DONE else event.outcome
        told = (
            self._whole(event, outcome) if asked.answer is None else self._of_bytes(asked, asked.answer, event, outcome)
        )
        asked.last = told
        return told

    def _whole(self, event: Ended, outcome: Outcome) -> Ended:
        """An answer that is not streamed: all or nothing."""
        if outcome is Outcome.DONE:
            return event
        return Ended(event.attempt, outcome, False, event.status)

    def _of_bytes(self, asked: Asked, answer: StreamedAnswer, event: Ended, outcome: Outcome) -> Ended:
        if outcome is Outcome.DONE:
            answer.finish()
        elif outcome is Outcome.LOST:
            answer.break_off(self._bytes_chance.random())
        if outcome in (Outcome.DONE, Outcome.LOST, Outcome.TIMED_OUT) and answer.completed():
            outcome = Outcome.DONE
        done = outcome is Outcome.DONE
        usage = answer.usage if done else None
        if usage is not None:  # the real size is the twin's: the bytes have a prompt of three tokens
            usage = msgspec.structs.replace(usage, prompt_tokens=self.calls[int(asked.request)].prompt_tokens)
        return Ended(
            event.attempt,
            outcome,
            answer.delivered,
            200 if done else event.status,
            usage,
            answer.splice.output_tokens,
            resumable=not done and answer.delivered and not answer.splice.refusal() and not asked.gone,
        )

    # -- the operator --------------------------------------------------------------------------------------------------

    def _operate(self, what: object) -> None:
        assert isinstance(what, Act)
        if what.what == "reload":
            assert what.settings is not None
            self.feed(Configured(what.settings))
        elif what.what == "weigh":
            self.feed(Weighed(what.instance, what.weight))
        else:
            self.hosts[what.instance].withdrawn = True
            self.feed(Withdrawn(what.instance, drain=False))
