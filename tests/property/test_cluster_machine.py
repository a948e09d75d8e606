"""The door as a state machine: any event that a driver may send, in any order; each request ends once, nothing is lost.

The driver here is as small as it can be: it knows which attempts are open and which requests are not over, and answers
as it likes. It has no engines, so orders come about that no simulated engine would bring.
"""

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from isochrone.cluster import Cluster
from isochrone.nouns.commands import Abort, Dispatch, Fail, Record, Refuse
from isochrone.nouns.events import (
    Accepted,
    Arrived,
    ClientLeft,
    Configured,
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
    Weighed,
    Withdrawn,
    Woke,
)
from isochrone.nouns.instance import InstanceSpec, ModelCard, Snapshot, State
from isochrone.nouns.instant import MILLISECOND, SECOND, Instant
from isochrone.nouns.request import PromptSize, Request, Slo, Usage
from isochrone.nouns.settings import Settings

POLICIES = ("equal-cost", "equal-cost", "round-robin", "lmetric", "least-request+admission")
SERVED = (("m",), ("m",), ("n",), ("m", "n"))
"""Models of an instance."""
INSTANCES = 5
NO_PLACE = frozenset({State.JOINING.value, State.DRAINING.value, State.GONE.value})
pick = st.integers(0, 10**6)
"""Which of those that there are."""


class Door(RuleBasedStateMachine):
    """A cluster and the least that its driver must know."""

    @initialize(
        policy=st.sampled_from(POLICIES),
        warm=st.sampled_from([0, 50]),
        held=st.sampled_from([1, 3, 1000]),
        attempts=st.integers(1, 4),
        resume=st.booleans(),
        slots=st.sampled_from([None, 1, 4]),
    )
    def begin(self, policy: str, warm: int, held: int, attempts: int, resume: bool, slots: int | None) -> None:
        self.settings = Settings(
            policy=policy, samples_warm=warm, queue_requests_max=held, attempts_max=attempts, resume=resume,
            slots_default=slots, drain_move_s=1.0, queue_wait_s_max=30.0,
        )  # fmt: skip
        self.cluster = Cluster(self.settings, random.Random(1))
        self.now: Instant = SECOND
        self.serves: dict[str, tuple[str, ...]] = {}
        self.models: dict[str, str] = {}
        """Of each request that ever came."""
        self.over: set[str] = set()
        self.open: dict[int, str] = {}
        self.on: dict[int, str] = {}
        self.output: dict[int, int] = {}
        """Attempt -> tokens so far; only once the first has come."""
        self.ended: list[int] = []
        self.tried: dict[str, list[str]] = {}
        self.gone: set[str] = set()
        self.delivered: dict[str, bool] = {}
        """Request -> the answer so far can go on elsewhere; only once something was delivered."""
        self.join(0, None)

    # -- what the cluster says -----------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        commands = self.cluster.handle(self.now, event)
        for command in commands:
            if isinstance(command, Dispatch):
                self.dispatched(command)
            elif isinstance(command, Refuse | Fail):
                assert command.request not in self.over
                assert command.request not in self.open.values()
                assert not isinstance(command, Refuse) or command.request not in self.tried
            elif isinstance(command, Record):
                request = command.decision.request
                assert request in self.models
                assert request not in self.over
                assert request not in self.open.values()
                self.over.add(request)
            else:
                assert isinstance(command, Abort)
                assert command.attempt in self.open

    def dispatched(self, command: Dispatch) -> None:
        request, attempt = command.request, command.attempt
        assert request not in self.over
        assert request not in self.gone
        assert request not in self.open.values(), "it runs already"
        assert attempt not in self.open
        assert attempt not in self.ended
        assert self.models[request] in self.serves[command.instance]
        tried = self.tried.setdefault(request, [])
        assert command.instance not in tried
        assert len(tried) < self.settings.attempts_max
        assert command.continues == (request in self.delivered)
        assert not command.continues or (self.delivered[request] and self.settings.resume)
        (view,) = [view for view in self.cluster.instances() if view.id == command.instance]
        assert view.state not in NO_PLACE
        assert view.weight > 0
        tried.append(command.instance)
        self.open[attempt], self.on[attempt] = request, command.instance

    # -- instances -----------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.serves) < INSTANCES)
    @rule(number=st.integers(0, len(SERVED) - 1), kv=st.sampled_from([None, 8_000, 100_000]))
    def join(self, number: int, kv: int | None) -> None:
        name = f"e{len(self.serves)}"
        self.serves[name] = SERVED[number]
        self.tell(Found(InstanceSpec(id=name, url=f"http://{name}")))
        self.tell(ModelsSeen(name, tuple(ModelCard(model, 32_768) for model in SERVED[number])))
        self.tell(Probed(name, Verdict.OK))
        self.scrape(int(name[1:]), 0, 0.0, kv, False)

    @rule(which=pick, verdict=st.sampled_from(list(Verdict)))
    def beat(self, which: int, verdict: Verdict) -> None:
        self.tell(Probed(self.instance(which), verdict))

    @rule(
        which=pick,
        running=st.integers(0, 20),
        usage=st.floats(0, 1),
        capacity=st.sampled_from([None, 8_000, 100_000]),
        restarted=st.booleans(),
    )
    def scrape(self, which: int, running: int, usage: float, capacity: int | None, restarted: bool) -> None:
        snapshot = Snapshot(
            engine="vllm", running=running, waiting=0, kv_usage_ratio=usage if capacity else None,
            kv_capacity_tokens=capacity, started_at_unix_s=self.now / SECOND if restarted else 1.0,
        )  # fmt: skip
        self.tell(Observed(self.instance(which), snapshot, self.now))

    @rule(which=pick, drain=st.booleans())
    def withdraw(self, which: int, drain: bool) -> None:
        self.tell(Withdrawn(self.instance(which), drain=drain))

    @rule(which=pick)
    def come_back(self, which: int) -> None:
        name = self.instance(which)
        self.tell(Found(InstanceSpec(id=name, url=f"http://{name}")))
        self.tell(ModelsSeen(name, tuple(ModelCard(model, 32_768) for model in self.serves[name])))
        self.tell(Probed(name, Verdict.OK))

    @rule(which=pick, weight=st.sampled_from([0.0, 0.5, 1.0, 3.0]))
    def weigh(self, which: int, weight: float) -> None:
        self.tell(Weighed(self.instance(which), weight))

    @rule(policy=st.sampled_from(POLICIES), hold=st.booleans(), resume=st.booleans())
    def reload(self, policy: str, hold: bool, resume: bool) -> None:
        changes = {"policy": policy, "hold": hold, "resume": resume}
        self.settings = Settings(**{name: getattr(self.settings, name) for name in FIELDS} | changes)
        self.tell(Configured(self.settings))

    def instance(self, which: int) -> str:
        return f"e{which % len(self.serves)}"

    # -- clients -------------------------------------------------------------------------------------------------------

    @rule(
        model=st.sampled_from(["m", "m", "n"]),
        tokens=st.sampled_from([1, 300, 5_000]),
        tenant=st.sampled_from("ab"),
        priority=st.integers(0, 1),
        slo=st.sampled_from([None, Slo(1.0, 0.05, True), Slo(5.0, None, False)]),
    )
    def arrive(self, model: str, tokens: int, tenant: str, priority: int, slo: Slo | None) -> None:
        name = f"r{len(self.models)}"
        self.models[name] = model
        size = PromptSize(token_ids=tokens)
        self.tell(
            Arrived(
                Request(
                    id=name, model=model, path="/v1/completions", stream=True, size=size, tenant=tenant,
                    priority=priority, slo=slo, blocks=tuple(range(tokens // 128)), hashed_bytes=4 * tokens,
                )
            )
        )  # fmt: skip

    @precondition(lambda self: len(self.over) < len(self.models))
    @rule(which=pick)
    def leave(self, which: int) -> None:
        left = sorted(set(self.models) - self.over - self.gone)
        if left:
            name = left[which % len(left)]
            self.gone.add(name)
            self.tell(ClientLeft(name))

    # -- attempts ------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.open)
    @rule(which=pick, tokens=st.integers(1, 60))
    def speak(self, which: int, tokens: int) -> None:
        attempt = sorted(self.open)[which % len(self.open)]
        if attempt not in self.output:
            self.tell(Accepted(attempt))
            self.tell(FirstToken(attempt))
        self.output[attempt] = self.output.get(attempt, 0) + tokens
        self.tell(Progress(attempt, self.output[attempt]))

    @precondition(lambda self: self.open)
    @rule(which=pick, outcome=st.sampled_from(list(Outcome)), resumable=st.booleans())
    def end(self, which: int, outcome: Outcome, resumable: bool) -> None:
        attempt = sorted(self.open)[which % len(self.open)]
        request = self.open.pop(attempt)
        self.ended.append(attempt)
        if request in self.gone and outcome is not Outcome.DONE:
            outcome = Outcome.CLIENT_LEFT
        said = self.output.pop(attempt, 0)
        if said and outcome is not Outcome.UNREACHABLE:
            self.delivered[request] = resumable
        delivered = request in self.delivered
        resumable = delivered and self.delivered[request] and outcome is not Outcome.CLIENT_LEFT
        usage = Usage(100, said, 0, "stop") if outcome is Outcome.DONE else None
        del self.on[attempt]
        self.tell(Ended(attempt, outcome, delivered, 0, usage, said, resumable=resumable))

    @precondition(lambda self: self.ended)
    @rule(which=pick)
    def tell_late(self, which: int) -> None:
        attempt = self.ended[which % len(self.ended)]
        late: list[Event] = [FirstToken(attempt), Progress(attempt, 9), Ended(attempt, Outcome.LOST), Accepted(attempt)]
        for event in late:
            assert not self.cluster.handle(self.now, event)

    # -- time ----------------------------------------------------------------------------------------------------------

    @rule(span=st.sampled_from([MILLISECOND, 50 * MILLISECOND, SECOND, 10 * SECOND]))
    def wait(self, span: int) -> None:
        until = self.now + span
        deadline = self.cluster.next_deadline()
        self.now = until if deadline is None else max(self.now, min(until, deadline))
        if deadline is not None and deadline <= until:
            self.tell(Woke())
        self.now = until

    # -- what holds ----------------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_lost_or_there_twice(self) -> None:
        waiting = set(self.models) - self.over - set(self.open.values())
        depth = sum(queue.depth for queue in self.cluster.queues())
        assert depth == len(waiting)
        assert self.cluster.in_flight() == len(self.open)
        assert sum(request not in self.tried for request in waiting) <= self.settings.queue_requests_max
        on = list(self.on.values())
        for view in self.cluster.instances():
            assert view.in_flight == on.count(view.id)
            if not view.in_flight:
                sums = (view.kv_tokens, view.context_tokens, view.owed_output_tokens, view.pending_prefill_tokens)
                assert sums == (0, 0, 0, 0)

    def teardown(self) -> None:
        """Whatever has happened: once engines answer or time is up, every request is over."""
        if not hasattr(self, "cluster"):
            return
        for _ in range(400):
            if len(self.over) == len(self.models):
                break
            while self.open:
                self.end(0, Outcome.DONE, False)
            self.wait(SECOND)
        assert self.over == set(self.models)
        self.nothing_is_lost_or_there_twice()


FIELDS = Settings.__struct_fields__
Door.TestCase.settings = settings(max_examples=60, stateful_step_count=50, derandomize=True, deadline=None)
TestDoor = Door.TestCase
