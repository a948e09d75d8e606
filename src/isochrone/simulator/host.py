"""One instance of the simulated cluster: a twin, what is wrong with it, and what runs on it."""

import msgspec

from isochrone.nouns.events import Verdict
from isochrone.nouns.instance import InstanceSpec, ModelCard, Snapshot
from isochrone.nouns.instant import Instant
from isochrone.simulator.fleet import Member
from isochrone.twin.lockstep import LockStep, Rank
from isochrone.twin.sequence import TwinRequest
from isochrone.twin.skipping import Sequence, SkippingEngine

UP = "up"
DOWN = frozenset({"dead", "hung", "wedged"})
"""Modes that cost what runs there, and end with a new process."""
REPORT_TOKENS, REPORT_S = 32, 0.5
"""A relay tells of progress after so many tokens of a stream, or so long."""
VERDICTS = {"dead": Verdict.REFUSED, "hung": Verdict.TIMEOUT, "unreachable": Verdict.TIMEOUT}


class Sent(msgspec.Struct, gc=False, kw_only=True):
    """One dispatch that the driver carries out."""

    call: int
    attempt: int
    host: "Host"
    row: Sequence | None
    """None: the instance took nothing."""
    before: int = 0
    """Tokens of the answer that the client has from earlier attempts."""
    first: bool = False
    """Its first token has come."""


class Host:
    """Twin, faults, attempts."""

    def __init__(
        self,
        number: int,
        member: Member,
        block_tokens: int,
        now: Instant,
        context: int,
        report_tokens: int = REPORT_TOKENS,
        group: LockStep | None = None,
    ) -> None:
        self.number = number
        self.member = member
        self.group = group
        """The engine that it is a rank of."""
        self.mode = UP
        self.stale = False
        self.withdrawn = False
        self.sent: dict[Sequence, Sent] = {}
        self.preemptions = 0
        """Of earlier processes."""
        self._block_tokens, self._context, self._report_tokens = block_tokens, context, report_tokens
        self._shown: Snapshot | None = None
        self._factor = 1.0
        self.start(now)

    @property
    def id(self) -> str:
        return self.member.id

    def spec(self) -> InstanceSpec:
        return InstanceSpec(id=self.id, url=f"http://{self.id}", engine="vllm", device_class=None)

    def card(self) -> ModelCard:
        return ModelCard(self.member.model, self._context)

    def start(self, now: Instant) -> None:
        """A new process: empty caches, counters from zero."""
        self.engine = self._engine()
        self.started_at = now
        self.wakes_at: Instant | None = None
        """The time of its entry in the driver's heap."""

    def _engine(self) -> SkippingEngine:
        member, told = self.member, self._report_tokens
        limits, step, pace = member.limits(self._block_tokens), member.profile.step, member.pace * self._factor
        report_s = REPORT_S * told / REPORT_TOKENS
        if self.group is None:
            return SkippingEngine(limits, step, pace, told, report_s)
        rank = Rank(self.group, limits, step, pace, told, report_s)
        self.group.replace(getattr(self, "engine", None), rank)
        return rank

    def submit(self, now: Instant, request: TwinRequest, sent: Sent) -> None:
        sent.row = self.engine.submit(now, request)
        self.sent[sent.row] = sent

    def slow_down(self, now: Instant, factor: float) -> None:
        """Every step takes so many times as long as the member's own pace."""
        self._factor = factor
        self.engine.change_pace(now, self.member.pace * factor)

    def give_up_all(self, now: Instant) -> list[Sent]:
        """The process is gone, or answers no more: what ran on it, in order of dispatch."""
        lost = list(self.sent.values())
        for sent in lost:
            assert sent.row is not None
            self.engine.end(sent.row, now)
        self.sent.clear()
        return lost

    def drop(self, sent: Sent, now: Instant) -> None:
        """One attempt is called off."""
        if sent.row is not None and self.sent.pop(sent.row, None) is not None:
            self.engine.end(sent.row, now)

    def snapshot(self) -> Snapshot:
        """What its metrics say now, or still say."""
        if (self.stale or self.mode == "wedged") and self._shown is not None:
            return self._shown
        engine = self.engine
        self._shown = Snapshot(
            engine="vllm",
            running=len(engine.running),
            waiting=len(engine.waiting),
            kv_usage_ratio=engine.kv_usage_ratio,
            kv_capacity_tokens=engine.pool.total * self._block_tokens,
            block_tokens=self._block_tokens,
            prefix_query_tokens=float(engine.prefix_query_tokens),
            prefix_hit_tokens=float(engine.prefix_hit_tokens),
            prompt_tokens=float(engine.prompt_tokens),
            generation_tokens=float(engine.generated_tokens),
            preemptions=float(engine.preemptions),
            iterations=float(engine.steps),
            iteration_tokens=float(engine.prompt_tokens + engine.generated_tokens),
            started_at_unix_s=self.started_at / 1e9,
        )
        return self._shown

    @property
    def verdict(self) -> Verdict:
        return VERDICTS.get(self.mode, Verdict.OK)
