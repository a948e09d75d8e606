"""A cluster under test without sockets: a heap of events, engines of a few lines, faults, checkers of the invariants.

The engines prefill first come, first served, and then give one token each `step_s`. It is no twin of a real engine; it
is there so that every order of events that a driver may bring about does come about.
"""

import heapq
import random
from dataclasses import dataclass, field

from isochrone.cluster import Cluster
from isochrone.kv.hashing import chain, text_salt
from isochrone.nouns.commands import Abort, Dispatch, Fail, Record, Refuse
from isochrone.nouns.events import (
    Accepted,
    Arrived,
    ClientLeft,
    Ended,
    Event,
    FirstToken,
    Found,
    ModelsSeen,
    Observed,
    Outcome,
    Probed,
    Progress,
    Verdict,
    Withdrawn,
    Woke,
)
from isochrone.nouns.instance import InstanceSpec, ModelCard, Snapshot
from isochrone.nouns.instant import SECOND, Instant, nanoseconds
from isochrone.nouns.request import PromptSize, Request, Slo, Usage
from isochrone.nouns.settings import Settings
from tests.support.client_stream import ClientStream

MODEL = "m"
PROGRESS_TOKENS = 32
PROMPTS = 16
"""Texts of streams that are told apart: each is worked out once."""


@dataclass
class Engine:
    """Prefill in line at `token_s` a token, then `step_s` a token of output."""

    id: str
    token_s: float = 60e-6
    step_s: float = 0.02
    mode: str = "up"
    """`up`, `dead` (refuses), `hung` (accepts, never answers), `busy` (503), `broken` (500)."""
    free_at: Instant = 0
    incarnation: int = 0
    running: set[int] = field(default_factory=set)
    taken: int = 0
    models: tuple[str, ...] = (MODEL,)


@dataclass
class Sent:
    """One dispatch that the rig carries out."""

    request: str
    engine: Engine
    incarnation: int
    output: int = 0
    """Tokens of this attempt."""


class Rig:
    """Drives one Cluster in virtual time."""

    def __init__(self, settings: Settings, engines: int = 4, seed: int = 0, **engine_kwargs: float) -> None:
        self.random = random.Random(seed)
        self.cluster = Cluster(settings, random.Random(seed + 1))
        self.settings = settings
        self.now: Instant = SECOND
        self.heap: list[tuple[Instant, int, object]] = []
        self.count = 0
        self.engines: dict[str, Engine] = {}
        self.sent: dict[int, Sent] = {}
        self.output: dict[str, int] = {}
        self.models: dict[str, str] = {}
        self.streams: dict[str, ClientStream] = {}
        self.continued = 0
        """Dispatches that continue a stream."""
        self.ended: dict[str, str] = {}
        """Request -> how it ended, as the client saw it."""
        self.arrived: set[str] = set()
        self.dispatches: list[tuple[Instant, str, str]] = []
        self.records: list[str] = []
        self.log: list[str] = []
        self.beats = 0
        self.scrape_every = 1
        """Heartbeats for each scrape."""
        self.idle_gauge = ""
        """The engine whose gauge of running requests always says 0."""
        self.kv_capacity_tokens: int | None = None
        """KV memory of each engine; None: they do not tell."""
        for number in range(engines):
            self.join(Engine(f"e{number}", **engine_kwargs))

    # -- set-up -------------------------------------------------------------------------------------------------------

    def join(self, engine: Engine, **spec: object) -> None:
        self.engines[engine.id] = engine
        self.feed(Found(InstanceSpec(id=engine.id, url=f"http://{engine.id}", **spec)))  # type: ignore[arg-type]
        self.serve(engine.id, engine.models)
        self.feed(Probed(engine.id, Verdict.OK))
        self.at(self.now + nanoseconds(self.settings.heartbeat_interval_s), ("beat", engine.id))

    def serve(self, engine_id: str, models: tuple[str, ...]) -> None:
        """The engine serves these from now on."""
        self.engines[engine_id].models = models
        self.feed(ModelsSeen(engine_id, tuple(ModelCard(model, 32_768) for model in models)))

    def request(
        self, name: str, text: bytes = b"", output: int = 50, model: str = MODEL, **fields: object
    ) -> Request:  # fmt: skip
        self.output[name], self.models[name] = output, model
        self.streams[name] = ClientStream(f"prompt {len(self.streams) % PROMPTS}", output)
        return Request(
            id=name,
            model=model,
            path="/v1/chat/completions",
            stream=True,
            size=PromptSize(text_bytes=len(text), messages=1),
            blocks=chain(text_salt(model), text),
            hashed_bytes=len(text),
            **fields,  # type: ignore[arg-type]
        )

    def at(self, when: Instant, what: object) -> None:
        self.count += 1
        heapq.heappush(self.heap, (when, self.count, what))

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self, until: Instant | None = None) -> None:
        """Until the heap holds nothing but heartbeats and nobody waits, or until the instant."""
        while self.heap:
            deadline = self.cluster.next_deadline()
            when = self.heap[0][0]
            if until is not None and min(when, deadline or when) > until:
                break
            if until is None and self._is_quiet():
                break
            if deadline is not None and deadline < when:
                self.now = deadline
                self.feed(Woke())
                continue
            self.now, _, what = heapq.heappop(self.heap)
            self._do(what)

    def _is_quiet(self) -> bool:
        only_beats = all(isinstance(what, tuple) and what[0] == "beat" for _, _, what in self.heap)
        return only_beats and len(self.ended) == len(self.arrived)

    def _do(self, what: object) -> None:
        if isinstance(what, tuple):
            kind, *rest = what
            getattr(self, f"_{kind}")(*rest)
        else:
            assert not isinstance(what, str)
            self.feed(what)  # type: ignore[arg-type]

    def feed(self, event: Event) -> None:
        if isinstance(event, Arrived):
            self.arrived.add(event.request.id)
        self.log.append(f"{self.now} {event}")
        for command in self.cluster.handle(self.now, event):
            self.log.append(f"  -> {command if not isinstance(command, Record) else command.decision.request}")
            self._obey(command)

    def _obey(self, command: object) -> None:
        if isinstance(command, Dispatch):
            self._dispatch(command)
        elif isinstance(command, Refuse):
            self._end(command.request, f"refused:{command.error.code}")
        elif isinstance(command, Fail):
            self._end(command.request, "failed")
        elif isinstance(command, Abort):
            sent = self.sent.get(command.attempt)
            if sent is not None and not (command.if_movable and self._stays(sent)):
                left = command.why == "client left"
                self.at(self.now, ("finish", command.attempt, Outcome.CLIENT_LEFT if left else Outcome.ABORTED))
        elif isinstance(command, Record):
            self.records.append(command.decision.request)

    def _stays(self, sent: Sent) -> bool:
        """An answer that is under way and cannot go on elsewhere."""
        stream = self.streams[sent.request]
        return stream.delivered and stream.splice.refusal() != ""

    def _end(self, request: str, how: str) -> None:
        assert request not in self.ended, f"{request} ended twice: {self.ended[request]}, {how}"
        self.ended[request] = how
        self.streams[request].check(whole=how == "done")

    # -- engines ------------------------------------------------------------------------------------------------------

    def _dispatch(self, command: Dispatch) -> None:
        assert command.request not in self.ended, "dispatched after its end"
        states = {view.id: view.state for view in self.cluster.instances()}
        state = states.pop(command.instance)
        if state == "ejected":  # fail open: only where there is nobody else
            assert not {"ready", "suspect"} & set(states.values()), f"{states} and {command.instance} ejected"
        else:
            assert state in ("ready", "suspect", "probing"), f"dispatched to {state}"
        engine = self.engines[command.instance]
        assert self.models[command.request] in engine.models, "dispatched to an instance of another model"
        engine.taken += 1
        sent = self.sent[command.attempt] = Sent(command.request, engine, engine.incarnation)
        self.dispatches.append((self.now, command.request, engine.id))
        stream = self.streams[command.request]
        stream.begin(command.continues)
        if command.continues:
            self.continued += 1
            assert [one for _, request, one in self.dispatches if request == command.request].count(engine.id) == 1
        soon = self.now + 200_000
        if engine.mode == "dead":
            self.at(soon, ("finish", command.attempt, Outcome.UNREACHABLE))
        elif engine.mode == "busy":
            self.at(soon, ("finish", command.attempt, Outcome.BUSY))
        elif engine.mode == "broken":
            self.at(soon, ("finish", command.attempt, Outcome.FAILED))
        elif engine.mode == "hung":
            self.at(
                self.now + nanoseconds(command.limits.first_token_s or 1),
                ("finish", command.attempt, Outcome.TIMED_OUT),
            )
        else:
            decision = self.cluster.decision(command.request)
            assert decision is not None
            work = nanoseconds(engine.token_s * decision.prompt_tokens_estimate)
            engine.free_at = max(engine.free_at, self.now) + work
            engine.running.add(command.attempt)
            self.at(soon, ("news", command.attempt, Accepted(command.attempt)))
            self.at(engine.free_at + nanoseconds(engine.step_s), ("first", command.attempt))
        del sent

    def _alive(self, attempt: int) -> Sent | None:
        sent = self.sent.get(attempt)
        return sent if sent is not None and sent.engine.incarnation == sent.incarnation else None

    def _news(self, attempt: int, event: Event) -> None:
        if self._alive(attempt):
            self.feed(event)

    def _first(self, attempt: int) -> None:
        sent = self._alive(attempt)
        if sent is not None:
            sent.output = 1
            self.streams[sent.request].advance(1)
            self.feed(FirstToken(attempt))
            self._plan(attempt, sent)

    def _more(self, attempt: int, tokens: int) -> None:
        sent = self._alive(attempt)
        if sent is not None:
            sent.output = tokens
            self.streams[sent.request].advance(tokens)
            self.feed(Progress(attempt, tokens))
            self._plan(attempt, sent)

    def _plan(self, attempt: int, sent: Sent) -> None:
        want = self.output[sent.request] - self.streams[sent.request].before
        step = min(PROGRESS_TOKENS, want - sent.output)
        if step <= 0:
            self.at(self.now, ("finish", attempt, Outcome.DONE))
        else:
            self.at(self.now + nanoseconds(step * sent.engine.step_s), ("more", attempt, sent.output + step))

    def _finish(self, attempt: int, outcome: Outcome) -> None:
        sent = self.sent.pop(attempt, None)
        if sent is None:
            return
        sent.engine.running.discard(attempt)
        stream = self.streams[sent.request]
        splice = stream.splice
        if outcome is Outcome.LOST:
            stream.break_off(self.random.random())
            if (ending := splice.ending()) is not None and stream.delivered:
                stream.got += ending
                outcome = Outcome.DONE
        elif outcome is Outcome.DONE:
            stream.finish()
        if outcome is Outcome.DONE:
            self._end(sent.request, "done")
        elif outcome is Outcome.CLIENT_LEFT:
            self.ended.setdefault(sent.request, "client_left")
        status = {Outcome.DONE: 200, Outcome.BUSY: 503, Outcome.FAILED: 500}.get(outcome, 0)
        usage = Usage(None, splice.output_tokens, None, "stop") if outcome is Outcome.DONE else None
        resumable = stream.delivered and splice.refusal() == ""
        tokens = splice.output_tokens
        self.feed(Ended(attempt, outcome, stream.delivered, status, usage, tokens, resumable=resumable))

    def _beat(self, engine_id: str) -> None:
        engine = self.engines.get(engine_id)
        if engine is None:
            return None
        verdict = {"dead": Verdict.REFUSED, "hung": Verdict.TIMEOUT}.get(engine.mode, Verdict.OK)
        self.feed(Probed(engine_id, verdict))
        if verdict is Verdict.OK:
            running = 0 if engine_id == self.idle_gauge else len(engine.running)
            self.beats += 1
            if self.beats // len(self.engines) % self.scrape_every:
                return self.at(self.now + nanoseconds(self.settings.heartbeat_interval_s), ("beat", engine_id))
            self.feed(Observed(engine_id, self._snapshot(engine, running), self.now))
        return self.at(self.now + nanoseconds(self.settings.heartbeat_interval_s), ("beat", engine_id))

    def _snapshot(self, engine: Engine, running: int) -> Snapshot:
        """What the engine's metrics say."""
        capacity, used = self.kv_capacity_tokens, 0
        if capacity is None:
            return Snapshot(engine="vllm", running=running, waiting=0)
        for attempt in engine.running:
            decision = self.cluster.decision(self.sent[attempt].request)
            used += self.sent[attempt].output + (decision.prompt_tokens_estimate if decision is not None else 0)
        usage = min(1.0, used / capacity)
        return Snapshot(
            engine="vllm", running=running, waiting=0, kv_usage_ratio=usage, kv_capacity_tokens=capacity
        )  # fmt: skip

    # -- faults -------------------------------------------------------------------------------------------------------

    def _mode(self, engine_id: str, mode: str) -> None:
        """Change how an engine behaves; dying loses what runs on it."""
        engine = self.engines.get(engine_id)
        if engine is None:
            return
        engine.mode = mode
        if mode in ("dead", "hung"):
            engine.incarnation += 1
            for attempt in sorted(engine.running):
                if mode == "dead":
                    self.at(self.now, ("finish", attempt, Outcome.LOST))
                else:
                    self.at(self.now + nanoseconds(self.settings.gap_s), ("finish", attempt, Outcome.TIMED_OUT))
            engine.running.clear()
        engine.free_at = self.now

    def _leave(self, request: str) -> None:
        if request not in self.ended:
            held = all(sent.request != request for sent in self.sent.values())
            self.feed(ClientLeft(request))
            if held:
                self._end(request, "client_left")

    def _join(self, engine: Engine, cost_per_hour: float | None) -> None:
        self.join(engine, cost_per_hour=cost_per_hour)

    def _withdraw(self, engine_id: str, drain: bool) -> None:
        self.feed(Withdrawn(engine_id, drain))

    # -- checks -------------------------------------------------------------------------------------------------------

    def check_over(self) -> None:
        """What must hold once all requests have ended."""
        assert set(self.ended) == self.arrived, f"never ended: {sorted(self.arrived - set(self.ended))[:5]}"
        assert sorted(self.records) == sorted(self.arrived), "each request leaves exactly one record"
        assert self.cluster.in_flight() == 0
        for instance in self.cluster._world.table.by_id.values():
            assert instance.ledger.is_zero(), f"{instance.id}: {instance.ledger}"
            assert instance.reserved_for is None
        for queue in self.cluster.queues():
            assert queue.depth == 0
        for pool in self.cluster._world.pools.values():
            assert not pool.apart
            assert pool.reservation is None
            assert pool.fairness is None or pool.fairness.active == 0
        assert self.cluster.next_deadline() is None


def slo(ttft_s: float, tpot_s: float | None = None, sheddable: bool = True) -> Slo:
    return Slo(ttft_s, tpot_s, sheddable)
