"""The instance table: one record an instance, found by its id or by its slot.

A slot is a small integer that stands for the instance in bit masks and matrices; it is given to another instance only
after everything about the former one is forgotten.
"""

from collections.abc import Mapping

import msgspec

from isochrone.instances import classes, silence
from isochrone.instances.failures import FailureRate
from isochrone.instances.gaps import Gaps
from isochrone.instances.ledger import Ledger
from isochrone.instances.lifecycle import Life
from isochrone.instances.slots import SlotGuess
from isochrone.instances.slowness import ClassWatch, Slowness
from isochrone.instances.steptime import Level, StepTimeModel
from isochrone.instances.stretch import Stretch
from isochrone.nouns.instance import InstanceSpec, ModelCard, Snapshot
from isochrone.nouns.instant import SECOND, Instant

LEVELS_KEPT = 10_000
FOREIGN_READINGS = 3
"""Load of other gateways or direct clients counts once this many scrapes in a row agree on at least that much."""


class Instance(msgspec.Struct, gc=False, kw_only=True):
    """Everything that the core knows about one instance."""

    slot: int
    spec: InstanceSpec
    weight: float
    kind: str
    """Its class by label or by what it says of itself."""
    class_name: str
    """Its class: its kind, or one split from that."""
    kept_class: str | None = None
    """The class that it had before a warm start, until its kind is known to be that one's."""
    step_times: StepTimeModel
    """Shared by the instances of a class."""
    level: Level = msgspec.field(default_factory=Level)
    """How slow this one is against its class, as a log."""
    slowness: Slowness = msgspec.field(default_factory=Slowness)
    """Whether that is to be believed."""
    differs_since: Instant | None = None
    """Since when its level has counted without a break."""
    failure_rate: FailureRate = msgspec.field(default_factory=FailureRate)
    gaps: Gaps | None = None
    """Measured gaps by batch; kept only where a cap on concurrency needs them."""
    life: Life = msgspec.field(default_factory=Life)
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    slot_guess: SlotGuess = msgspec.field(default_factory=SlotGuess)
    incarnation: int = 0
    models: dict[str, int | None] = msgspec.field(default_factory=dict)
    """Model name -> max_model_len (None: the engine did not say)."""
    snapshot: Snapshot | None = None
    scraped_at: Instant | None = None
    foreign: int = 0
    """Requests on the instance that are not ours: the least of the last readings."""
    foreign_readings: list[int] = msgspec.field(default_factory=list)
    kv_offset_tokens: int = 0
    """Scraped KV use minus what of ours the engine should have held then: shared blocks, other clients, errors."""
    last_token_at: Instant | None = None
    """Last sign of life on the data path."""
    heard_at: Instant = 0
    """Last sign of work: see `instances/silence.py`."""
    hangs: int = 0
    """How often it was found to hang."""
    last_sample_at: Instant = 0
    mean_request_s: float = 1.0
    """Moving average of whole requests, dispatch to end."""
    admitted: int = 0
    """Attempts ever dispatched here."""
    last_dispatch_at: Instant = 0
    starts_at: Instant | None = None
    """When it joined peers that were at work already: its pending prefill ramps up from here. None: no ramp."""
    reserved_for: str | None = None
    """The request that this instance is being emptied for; others have no room."""
    special: bool = False
    """`failure_rate`, `starts_at` or `reserved_for` may have something to say: its row needs adjusting."""
    keep_when_drained: bool = False
    last_first_token_sample_at: Instant = 0
    stretch: Stretch = msgspec.field(default_factory=Stretch)
    """How much prefill lengthens the gaps between tokens here."""
    slack_per_s: float = 0.0
    """Sum of 1/slack over decoding requests with a TPOT target; see `scheduling/price.py`."""
    slack_at: Instant = -1
    """When it was last worked out; -1: no request with such a target has come here."""
    marks: list[set[int]] = msgspec.field(default_factory=list)
    """One set of each pool that the instance is known in: its slot goes in there when something on it changes."""

    @property
    def id(self) -> str:
        return self.spec.id

    def slots(self, default: int | None) -> int | None:
        """max_num_seqs: configured, else inferred, else the default; None: unknown, no limit."""
        return self.spec.slots or self.slot_guess.slots or default

    def scrape_is_fresh(self, now: Instant, age_s_max: float) -> bool:
        return self.scraped_at is not None and now - self.scraped_at <= age_s_max * SECOND

    def kv_usage(self, now: Instant, age_s_max: float) -> float | None:
        """Share of KV memory in use: the last scrape carried on with our own deltas; None where capacity is unknown."""
        snapshot = self.snapshot
        if snapshot is None or not snapshot.kv_capacity_tokens or not self.scrape_is_fresh(now, age_s_max):
            return None
        used = self.ledger.kv_tokens + self.kv_offset_tokens
        return min(1.0, max(0.0, used / snapshot.kv_capacity_tokens))

    def observe(self, snapshot: Snapshot, taken_at: Instant) -> bool:
        """Take a scrape in. Returns True where it shows that the engine was started anew."""
        before = self.snapshot
        restarted = before is not None and _restarted(before, snapshot)
        if restarted:
            self.incarnation += 1
            self.slot_guess = SlotGuess()
            self.foreign_readings.clear()
            self.foreign = 0
        if before is None or restarted or silence.moved(before, snapshot):
            self.heard_at = max(self.heard_at, taken_at)
        self.snapshot, self.scraped_at = snapshot, taken_at
        self.slot_guess.observe(snapshot)
        if snapshot.running is not None:
            ours = self.ledger.in_flight
            self.foreign_readings.append(max(0, snapshot.running + (snapshot.waiting or 0) - ours))
            del self.foreign_readings[:-FOREIGN_READINGS]
            self.foreign = min(self.foreign_readings) if len(self.foreign_readings) == FOREIGN_READINGS else 0
        if snapshot.kv_usage_ratio is not None and snapshot.kv_capacity_tokens:
            scraped = round(snapshot.kv_usage_ratio * snapshot.kv_capacity_tokens)
            self.kv_offset_tokens = scraped - self.ledger.kv_resident(taken_at)
        return restarted


def _restarted(before: Snapshot, after: Snapshot) -> bool:
    """A new start time, or a counter that went back."""
    if before.started_at_unix_s is not None and after.started_at_unix_s is not None:
        return abs(after.started_at_unix_s - before.started_at_unix_s) > 1.0
    return any(
        old is not None and new is not None and new < old
        for old, new in (
            (before.prompt_tokens, after.prompt_tokens),
            (before.generation_tokens, after.generation_tokens),
        )
    )


class InstanceTable:
    """All instances, by id and by slot."""

    def __init__(self) -> None:
        self.by_id: dict[str, Instance] = {}
        self.by_slot: list[Instance | None] = []
        self._classes: dict[str, StepTimeModel] = {}
        self._watches: dict[str, ClassWatch] = {}
        self._levels: dict[str, Mapping[str, object]] = {}
        """Levels from a warm start, for instances that have not joined yet; at most LEVELS_KEPT."""

    def add(self, spec: InstanceSpec) -> Instance:
        """A new instance in the lowest free slot."""
        assert spec.id not in self.by_id
        slot = next((i for i, instance in enumerate(self.by_slot) if instance is None), len(self.by_slot))
        kind = kind_of(spec, None)
        instance = Instance(
            slot=slot,
            spec=spec,
            weight=spec.weight,
            kind=kind,
            class_name=kind,
            step_times=self.class_model(kind),
            models=dict.fromkeys(spec.models, spec.max_model_len),
        )
        kept = self._levels.pop(spec.id, None)
        if kept is not None:
            self._restore_level(instance, kept)
        if slot == len(self.by_slot):
            self.by_slot.append(instance)
        else:
            self.by_slot[slot] = instance
        self.by_id[spec.id] = instance
        return instance

    def remove(self, instance: Instance) -> None:
        """Forget an instance; its slot is free again."""
        assert instance.ledger.in_flight == 0
        del self.by_id[instance.id]
        self.by_slot[instance.slot] = None

    def at(self, slot: int) -> Instance:
        instance = self.by_slot[slot]
        assert instance is not None
        return instance

    def class_model(self, name: str) -> StepTimeModel:
        """The step-time model of a class, made at first sight."""
        model = self._classes.get(name)
        if model is None:
            model = self._classes[name] = StepTimeModel()
        return model

    def classes(self) -> dict[str, StepTimeModel]:
        return self._classes

    def watch(self, name: str) -> ClassWatch:
        """The watch over a class, made at first sight."""
        watch = self._watches.get(name)
        if watch is None:
            watch = self._watches[name] = ClassWatch()
        return watch

    def remember_level(self, instance_id: str, learned: Mapping[str, object]) -> None:
        """A level from a warm start, for the instance of that name, now or when it joins."""
        instance = self.by_id.get(instance_id)
        if instance is not None:
            self._restore_level(instance, learned)
        elif len(self._levels) < LEVELS_KEPT:
            self._levels[instance_id] = learned

    def _restore_level(self, instance: Instance, learned: Mapping[str, object]) -> None:
        if instance.level.restore(learned):
            instance.slowness.believe(instance.level)
        kept = learned.get("class")
        if isinstance(kept, str):
            instance.kept_class = kept
            self._enter(instance, self._class_for(instance))

    def classify(self, instance: Instance) -> None:
        """Put the instance into the class that its spec and last scrape say. One that has been split from its class
        stays where it is as long as these say the same."""
        kind = kind_of(instance.spec, instance)
        if kind == instance.kind:
            return
        instance.kind = kind
        self._enter(instance, self._class_for(instance))

    def _class_for(self, instance: Instance) -> str:
        """Its kind, or the class split from that which it had before a warm start."""
        kept = instance.kept_class
        if kept is not None and kept in self._classes and classes.kind_of(kept) == instance.kind:
            return kept
        return instance.kind

    def settle_apart(self, instance: Instance) -> None:
        """The instance has differed from its class for long: move it to its like, or let it found a class."""
        model, level = instance.step_times, instance.level
        others = [
            (name, other)
            for name, other in self._classes.items()
            if other is not model and classes.kind_of(name) == instance.kind
        ]
        found = classes.nearest(model, level.value, others)
        if found is not None:
            name, rest = found
        else:
            name = classes.split_name(instance.class_name, model, self._classes.get(instance.kind), level.value)
            rest = 0.0
            if name not in self._classes:
                self._classes[name] = classes.split(model, level.factor)
        self._enter(instance, name)
        level.shift(rest - level.value)
        instance.slowness.clear()
        instance.differs_since = None

    def _enter(self, instance: Instance, name: str) -> None:
        """Change class; a class that was split off and has lost its last instance goes away."""
        left = instance.class_name
        if name == left:
            return
        instance.class_name, instance.step_times = name, self.class_model(name)
        if left != classes.kind_of(left) and all(one.class_name != left for one in self.by_id.values()):
            del self._classes[left]
            self._watches.pop(left, None)


def kind_of(spec: InstanceSpec, instance: Instance | None) -> str:
    """Configured label, else model + engine + KV size: engines that are alike in these share a step-time model."""
    if spec.device_class:
        return spec.device_class
    if instance is None or instance.snapshot is None:
        return "unknown"
    model = min(instance.models, default="")
    return unlabelled(model, instance.snapshot.engine, instance.snapshot.kv_capacity_tokens or 0)


def unlabelled(model: str, engine: str, kv_tokens: int) -> str:
    """The class of an instance without a label."""
    return f"{model}/{engine}/{kv_tokens}"


def card_lengths(cards: tuple[ModelCard, ...]) -> dict[str, int | None]:
    """Model name -> longest context of an engine's model list."""
    return {card.name: card.max_model_len for card in cards}
