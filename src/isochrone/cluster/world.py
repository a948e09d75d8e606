"""What the handlers share: tables, indexes, models. Behind the door, never handed out."""

from collections.abc import Iterable

import msgspec

from isochrone.access.promptsize import PromptTokens
from isochrone.instances.ledger import Flight
from isochrone.instances.table import Instance, InstanceTable
from isochrone.kv.index import PrefixIndex
from isochrone.nouns.chance import Chance
from isochrone.nouns.commands import Command, Limits
from isochrone.nouns.decision import Decision
from isochrone.nouns.instance import State
from isochrone.nouns.instant import MILLISECOND, Instant
from isochrone.nouns.request import PromptSize, Request, Slo
from isochrone.nouns.settings import Settings
from isochrone.observe.series import Series
from isochrone.scheduling import policies
from isochrone.scheduling.adjust import adjusted, adjusts_all
from isochrone.scheduling.admission import Reserve, RetryBudget
from isochrone.scheduling.fairness import Fairness
from isochrone.scheduling.hedges import Hedges
from isochrone.scheduling.lengths import OutputLengths
from isochrone.scheduling.parts import effective
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask, Row, derive
from isochrone.scheduling.queue import Held, HeldQueue
from isochrone.scheduling.reservation import NEVER_LARGE, Reservation, large_from

RETRY_AFTER_S = 2
"""What a refused client is told to wait where nothing better is known: one heartbeat."""
LOOK_NS = 500 * MILLISECOND
"""While attempts run: how often instances are looked at for hanging."""


class ModelPool(Pool):
    """A pool with its queue."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.queue = HeldQueue()
        self.longest: int | None = None
        """Longest context of any known instance, in tokens."""
        self.mixed_contexts = False
        """Members differ in the longest context that they take."""
        self.tenant: str | None = None
        """The one tenant that has used the pool so far."""
        self.fairness: Fairness | None = None
        """Counters, from the second tenant on."""
        self.large_from = NEVER_LARGE
        """Prompt tokens from which KV room is looked at."""
        self.apart: dict[str, Held] = {}
        """Of the queue, those that fit only an instance that is emptied for them."""
        self.reservation: Reservation | None = None


class Flow(msgspec.Struct, gc=False, kw_only=True):
    """One request from arrival to end."""

    request: Request
    ask: Ask
    decision: Decision
    pool: ModelPool
    slo: Slo | None
    relay: int
    epoch: int
    flight: Flight | None = None
    instance: Instance | None = None
    rival: Flight | None = None
    """The other one of two attempts that run (`cluster/hedging.py`)."""
    rival_instance: Instance | None = None
    won: bool = False
    """Of the two, `flight` was first; `rival` is being ended."""
    tried: frozenset[int] = frozenset()
    """Slots where an attempt has failed."""
    ordinal: int = 0
    """Attempts so far."""
    held_since: Instant | None = None
    continues: bool = False
    """The client has `said_tokens` of the answer: the next attempt, or the one in flight, generates the rest."""
    said_tokens: int = 0
    counted: bool = False
    """It is in its pool's `fairness`."""
    charged: bool = False
    """So is what its running attempt is expected to take."""


class World:
    """All state of a cluster. Handlers append to `out` what the driver has to do."""

    def __init__(self, settings: Settings, chance: Chance) -> None:
        self.settings = settings
        self.chance = chance
        self.out: list[Command] = []
        self.table = InstanceTable()
        self.pools: dict[str, ModelPool] = {}
        self.unsettled: set[str] = set()
        """Models whose pools have members to be looked up anew: see `regroup_later`."""
        self.flows: dict[str, Flow] = {}
        """Requests that are not over."""
        self.flights: dict[int, Flow] = {}
        """By attempt: those that are dispatched."""
        self.attempts_given = 0
        self.held_count = 0
        self.index = PrefixIndex()
        self.lengths = OutputLengths()
        self.expected = self.lengths
        """What forecasts use: the learnt lengths, or a prior that never learns where these were left out."""
        self.prompt_tokens = PromptTokens()
        self.series = Series()
        self.budget = RetryBudget()
        self.reserve = Reserve()
        self.decisions: dict[str, Decision] = {}
        """Oldest first; at most `settings.decisions_max`."""
        self.samples_since_recentre = 0
        self.moves: dict[str, Instant] = {}
        """Draining instances: when what still runs on them is moved."""
        self.hedges = Hedges()
        self.fallen: list[Flow] = []
        """Requests that the event at hand has moved to a fallback model, to be placed there."""
        self.silence_due: Instant | None = None
        """When instances are next looked at for hanging; None: nobody has anything to be silent about."""
        self.deaf_until: Instant = 0
        """Until then we were asleep ourselves: no silence before it counts."""
        self.any_slow = False
        """Some instance counts as slow: it may need a probe."""
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """New settings: policies are made anew, what was learnt stays."""
        self.settings = settings = effective(settings)
        self.expected = OutputLengths() if "lengths" in settings.without else self.lengths
        self.adjusts_all = adjusts_all(settings)
        self.sheds = "shed" not in settings.without
        self.minds_due = "in-time" not in settings.without
        self.reserves = "reservation" not in settings.without
        self.orders_by_work = "order" not in settings.without
        self.looks_at_prefixes = "prefix" not in settings.without
        self.policy = policies.make(settings.policy, self.chance)
        self.shadow = policies.make(settings.shadow, self.chance) if settings.shadow else None
        both = (self.policy,) if self.shadow is None else (self.policy, self.shadow)
        self.listeners = tuple(policy for policy in both if policy.listens)
        """Policies that want to hear of scrapes, first tokens, ends and departures; mostly none."""
        self.prices_slack = any(policy.priced_by_queue for policy in both)
        """Some policy's price looks at how much time decoding requests have left: else nobody works that out."""
        self.limits = Limits(settings.connect_s, settings.first_token_s, settings.gap_s, settings.whole_s)

    def watch_silence(self, now: Instant) -> None:
        """An attempt goes out that another instance could take over: look at them all from now on."""
        if self.settings.silence_s is not None and (self.silence_due is None or not self.flights):
            self.silence_due = now + LOOK_NS

    def derive(self, instance: Instance, now: Instant) -> Row:
        """The instance's row as of now."""
        settings = self.settings
        row = derive(instance, settings, self.expected, now)
        return adjusted(row, instance, settings, now) if instance.special or self.adjusts_all else row

    def regroup(self, instance: Instance) -> None:
        """The instance's state, weight or class changed: its pools' members may be others now."""
        self.regroup_later(instance)
        self.settle()

    def regroup_later(self, instance: Instance) -> None:
        """The same, before anyone asks for members: of a thousand instances that join one after the other each tells
        three things, and every look at a pool is a look at all of its instances. Whoever goes on to read members in the
        same event calls `settle` first; `Cluster` does it before all events but those of instances."""
        self.unsettled.update(instance.models)

    def settle(self) -> None:
        """Look up the members of pools in which something has changed."""
        for model in sorted(self.unsettled):
            pool = self.pools[model]
            pool.regroup(self.settings.samples_warm)
            pool.longest = pool.longest_context()
            pool.mixed_contexts = len(set(pool.limits)) > 1
            pool.large_from = large_from(pool.members) if self.reserves else NEVER_LARGE
        self.unsettled.clear()

    def place_in_pools(self, instance: Instance) -> None:
        """The instance joined, or serves other models now."""
        self.any_slow = self.any_slow or instance.slowness.slow(instance.level)
        for model, pool in self.pools.items():
            if instance in pool.known and model not in instance.models:
                pool.known.remove(instance)
                self.unsettled.add(model)
        for model in instance.models:
            pool = self.pools.get(model) or ModelPool(model)
            self.pools[model] = pool
            if instance not in pool.known:
                pool.known.append(instance)
        self.regroup_later(instance)
        instance.marks = [self.pools[model].marked for model in instance.models]
        self.series.know_models(instance.models)
        self.set_index_capacity(instance)

    def set_index_capacity(self, instance: Instance) -> None:
        """Tell the prefix index how much prompt text the instance's KV memory can hold."""
        capacity = instance.snapshot.kv_capacity_tokens if instance.snapshot is not None else None
        if capacity:
            tokens = self.prompt_tokens.estimate(min(instance.models, default=""), PromptSize(text_bytes=1 << 20))
            self.index.set_capacity(instance.slot, capacity * (1 << 20) // max(1, tokens))

    def retire_if_drained(self, instance: Instance) -> None:
        """A draining instance whose last attempt has ended goes away, unless it is to stay listed."""
        if instance.life.state is not State.DRAINING or instance.ledger.in_flight or instance.keep_when_drained:
            return
        instance.life.withdraw()
        for pool in self.pools_of(instance):
            pool.known.remove(instance)
        self.regroup(instance)
        self.index.remove(instance.slot)
        self.table.remove(instance)
        for policy in self.listeners:
            policy.gone(instance)
        self.series.instance_gone(instance.id)

    def pools_of(self, instance: Instance) -> Iterable[ModelPool]:
        """The pools that the instance is known in."""
        return (self.pools[model] for model in instance.models)

    def touch(self, instance: Instance) -> None:
        """Something on the instance changed: its rows are derived anew before the next decision."""
        for marked in instance.marks:
            marked.add(instance.slot)

    def remember(self, decision: Decision) -> None:
        """Keep a record for explanations, and let the oldest go."""
        decisions = self.decisions
        decisions[decision.request] = decision
        if len(decisions) > self.settings.decisions_max:
            del decisions[next(iter(decisions))]
