"""A cluster at its door, second by second: instances that tell their figures, a driver that wakes it in time.

Nothing computes here. A test says what each instance does: which of its streams get tokens, and whether the figures of
its metrics move.
"""

import random

import msgspec

from isochrone.cluster import Cluster
from isochrone.nouns.commands import Abort, Command, Dispatch, Fail, Record, Refuse
from isochrone.nouns.events import (
    Arrived,
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
    Woke,
)
from isochrone.nouns.instance import InstanceSpec, ModelCard, Snapshot
from isochrone.nouns.instant import MILLISECOND, SECOND, Instant
from isochrone.nouns.request import PromptSize, Request, Usage
from isochrone.nouns.settings import Settings

STEP_NS = 50 * MILLISECOND
"""How finely time goes by."""


class Door:
    """One cluster and what it has said so far."""

    def __init__(self, settings: Settings | None = None, instances: int = 2, models: tuple[str, ...] = ("m",)) -> None:
        self.cluster = Cluster(settings or Settings(policy="round-robin"), random.Random(1))
        self.now: Instant = SECOND
        self.said: list[Command] = []
        self.on: dict[int, Dispatch] = {}
        """Attempts that have not ended."""
        self.tokens: dict[int, int] = {}
        self.working: set[str] = set()
        """Instances whose streams get tokens and whose figures move."""
        self.reads: set[str] = set()
        """Instances whose metrics are answered."""
        self.figures: dict[str, Snapshot] = {}
        self.resumable = True
        self._asked = 0
        for number in range(instances):
            self.join(f"e{number}", models)

    def join(self, instance: str, models: tuple[str, ...] = ("m",), reads: bool = True) -> None:
        self.feed(Found(InstanceSpec(id=instance, url=f"http://{instance}", engine="vllm")))
        self.feed(ModelsSeen(instance, tuple(ModelCard(model, 200_000) for model in models)))
        self.feed(Probed(instance, Verdict.OK))
        self.working.add(instance)
        if reads:
            self.reads.add(instance)
            self.figures[instance] = Snapshot(
                engine="vllm", running=0, waiting=0, generation_tokens=0.0, iterations=0.0, kv_capacity_tokens=500_000
            )

    def feed(self, event: Event) -> list[Command]:
        """One event; what came of it."""
        said = list(self.cluster.handle(self.now, event))
        self.said += said
        for command in said:
            if isinstance(command, Dispatch):
                self.on[command.attempt] = command
                self.tokens[command.attempt] = 0
            elif isinstance(command, Abort) and command.attempt in self.on:
                self.end(command.attempt, Outcome.ABORTED)
        return said

    def ask(self, prompt_tokens: int = 100, stream: bool = True, **fields: object) -> str:
        """A request arrives; its id."""
        self._asked += 1
        fields = {"model": "m", "size": PromptSize(token_ids=prompt_tokens), **fields}
        request = Request(id=f"r{self._asked}", path="/v1/completions", stream=stream, **fields)  # type: ignore[arg-type]
        self.feed(Arrived(request))
        return request.id

    def end(self, attempt: int, outcome: Outcome, status: int = 0, why: str = "") -> None:
        """An attempt ends."""
        if self.on.pop(attempt, None) is None:
            return
        tokens = self.tokens.pop(attempt)
        usage = Usage(None, tokens, None, "stop") if outcome is Outcome.DONE else None
        delivered = tokens > 0
        resumable = delivered and self.resumable and outcome is not Outcome.DONE
        self.feed(Ended(attempt, outcome, delivered, status, usage, tokens, why=why, resumable=resumable))

    def pass_(self, seconds: float, tokens: bool = True) -> None:
        """Time goes by. Working instances give each stream a token a step; all that are read are read each second."""
        until = self.now + round(seconds * SECOND)
        while self.now < until:
            self.now += STEP_NS
            while (due := self.cluster.next_deadline()) is not None and due <= self.now:
                self.feed(Woke())
            for attempt, command in list(self.on.items()):
                if tokens and command.instance in self.working and attempt in self.on:
                    self._token(attempt)
            if self.now % SECOND == 0:
                for instance in sorted(self.reads):
                    self._read(instance)

    def running(self, instance: str) -> list[int]:
        """Attempts on an instance."""
        return [attempt for attempt, command in self.on.items() if command.instance == instance]

    def state(self, instance: str) -> str:
        return next(view.state for view in self.cluster.instances() if view.id == instance)

    def told(self, kind: type[Command]) -> list[Command]:
        """What the cluster has said of one kind."""
        return [command for command in self.said if isinstance(command, kind)]

    def failed(self) -> list[Command]:
        return [command for command in self.said if isinstance(command, Fail | Refuse)]

    def check_over(self) -> None:
        """All ends: nothing is left in any account."""
        while self.on:
            self.end(min(self.on), Outcome.DONE, 200)
        assert self.cluster.in_flight() == 0
        assert self.cluster.next_deadline() is None
        for instance in self.cluster._world.table.by_id.values():
            assert instance.ledger.is_zero()
        records = [command.decision.request for command in self.said if isinstance(command, Record)]
        assert len(records) == len(set(records)) == self._asked

    def _token(self, attempt: int) -> None:
        self.tokens[attempt] += 1
        if self.tokens[attempt] == 1:
            self.feed(FirstToken(attempt))
        elif self.tokens[attempt] % 8 == 0:
            self.feed(Progress(attempt, self.tokens[attempt]))

    def _read(self, instance: str) -> None:
        was = self.figures[instance]
        if instance in self.working:
            steps = (was.iterations or 0.0) + (20.0 if self.running(instance) else 0.0)
            was = msgspec.structs.replace(
                was, iterations=steps, generation_tokens=steps, running=len(self.running(instance))
            )
            self.figures[instance] = was
        self.feed(Observed(instance, was, self.now))
