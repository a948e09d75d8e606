"""Hundreds of small runs in which everything goes wrong, each drawn from a seed, with the invariants checked.

`isochrone replay --seed N` runs one of them again and tells its story: the same seed gives the same lines. What is
checked stands in `invariants.py`.
"""

import dataclasses
import random
from dataclasses import dataclass

import msgspec

from isochrone.nouns.request import Slo
from isochrone.nouns.settings import Settings
from isochrone.scheduling import policies
from isochrone.scheduling.parts import PARTS
from isochrone.simulator.faults import FAULTS, Fault
from isochrone.simulator.fleet import Fleet, Member
from isochrone.simulator.invariants import Note, Watched
from isochrone.simulator.plan import Plan, Run
from isochrone.simulator.relayed import Act, Client
from isochrone.simulator.requests import TOLD
from isochrone.simulator.workload import Call, Workload
from isochrone.twin.profiles import PROFILES

LASTS_S = 15.0
"""The longest that an instance takes nothing."""
BLOCK = 16
SLOS = (None, Slo(1.0, 0.1, True), Slo(2.0, None, False), Slo(0.3, 0.05, True))


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a seed stands for."""

    plan: Plan
    workload: Workload
    clients: list[Client]
    """One for each call."""
    acts: list[Act]
    """What the operator does."""


def draw(seed: int) -> Drawn:
    """The run of a seed."""
    chance = random.Random(seed)
    settings = _settings(chance)
    members = _members(chance)
    span_s = chance.choice([2.0, 8.0, 20.0])
    calls = _calls(chance, span_s)
    faults = tuple(_fault(chance, len(members), span_s) for _ in range(chance.choice([0, 1, 4, 8])))
    plan = Plan(settings, Fleet(members), told=chance.choice(TOLD), faults=faults)
    acts = [_act(chance, settings, len(members), span_s) for _ in range(chance.choice([0, 0, 1, 3]))]
    return Drawn(plan, Workload(f"swarm {seed}", calls, BLOCK), _clients(chance, calls), acts)


def run_seed(seed: int, note: Note | None = None) -> Run:
    """One seed; raises Broken where an invariant does not hold. `note` is given every event and command."""
    return watched(draw(seed), seed, note).run()


def watched(drawn: Drawn, seed: int, note: Note | None = None) -> Watched:
    """The seed's run, before it has begun."""
    return Watched(drawn.plan, drawn.workload, drawn.clients, drawn.acts, seed, note)


def _settings(chance: random.Random) -> Settings:
    names = policies.names()
    return Settings(
        policy="equal-cost" if chance.random() < 0.6 else chance.choice(names),
        shadow=chance.choice([None, None, *names]),
        hold=chance.random() < 0.9,
        without=_without(chance),
        queue_requests_max=chance.choice([3, 50, 1000]),
        queue_wait_s_max=chance.choice([2.0, 60.0]),
        attempts_max=chance.choice([1, 2, 3, 3, 4, 5]),
        retry_tokens_max=chance.choice([0.0, 5_000.0, 200_000.0, 200_000.0]),
        retry_tokens_per_s=chance.choice([0.0, 2000.0]),
        resume=chance.random() < 0.9,
        drain_move_s=chance.choice([0.0, 1.0, 60.0]),
        first_token_s=chance.choice([2.0, 30.0, 600.0]),
        gap_s=chance.choice([2.0, 30.0]),
        samples_warm=chance.choice([0, 10, 50]),
        slots_default=chance.choice([None, 2, 8]),
        slo=chance.choice(SLOS),
        slo_by_tenant=chance.choice([{}, {"b": Slo(0.5, 0.03, True)}]),
        cap_ratio=chance.choice([None, None, 0.6]),
        heartbeat_interval_s=chance.choice([0.5, 2.0]),
        slow_start_s=chance.choice([0.0, 5.0, 30.0]),
        decisions_max=chance.choice([5, 1000]),
    )


def _without(chance: random.Random) -> frozenset[str]:
    return frozenset(chance.sample(sorted(PARTS), chance.choice([0, 0, 1, 4])))


def _members(chance: random.Random) -> tuple[Member, ...]:
    """Instances of mixed classes and paces; sometimes with KV memory for a few of the longest prompts only."""
    kv_tokens = chance.choice([None, None, 16_384, 65_536])
    members = []
    for number in range(chance.choice([1, 2, 3, 4, 7])):
        profile = PROFILES[chance.choice(sorted(PROFILES))]
        profile = dataclasses.replace(profile, kv_tokens=kv_tokens or profile.kv_tokens)
        members.append(Member(f"e{number}", profile, chance.choice([0.2, 1.0, 1.0, 3.0])))
    return tuple(members)


def _calls(chance: random.Random, span_s: float) -> list[Call]:
    """Due within `span_s`, in which faults begin, too."""
    calls = []
    for _ in range(chance.choice([20, 120])):
        prompt = chance.choice([1, 40, 700, 6000])
        shared = chance.randrange(prompt // BLOCK + 1)
        family = chance.randrange(4) * 1000
        session = chance.choice([-1, -1, chance.randrange(8)])
        gap = round(chance.random() * 1e9) if session >= 0 and chance.random() < 0.5 else None
        ids = tuple(range(family, family + shared))
        at = round(chance.random() * span_s * 1e9)
        calls.append(Call(at, prompt, chance.choice([1, 20, 200, 400]), chance.choice("ab"), ids, session, gap))
    calls.sort(key=_by_time)
    return calls


def _clients(chance: random.Random, calls: list[Call]) -> list[Client]:
    tenants = chance.choice([["a"], ["a", "b"], [f"t{number}" for number in range(20)]])
    sheddable, leaving = chance.choice([0.0, 0.0, 0.3, 1.0]), chance.choice([0.0, 0.1, 0.5])
    return [
        Client(
            tenant=chance.choice(tenants),
            priority=chance.choice([0, 0, 1]),
            slo=Slo(chance.choice([0.2, 1.0, 5.0]), 0.05, True) if chance.random() < sheddable else None,
            stream=chance.random() < 0.9,
            leaves_after_s=chance.random() * 3 if chance.random() < leaving else None,
            max_tokens=chance.choice([None, call.output_tokens, call.output_tokens + 100]),
            exact=chance.random() < 0.8,
            event_tokens=chance.choice([1, 1, 1, 3]),
            wants_usage=chance.random() < 0.5,
            resumable=chance.random() < 0.9,
        )
        for call in calls
    ]


def _fault(chance: random.Random, members: int, span_s: float) -> Fault:
    at = chance.random() * span_s
    until = chance.choice([None, at + chance.random() * 10 + 0.01])
    name = chance.choice(["dead", "dead", "hung", "scale-in", *sorted(FAULTS)])
    if name in ("dead", "hung", "wedged", "unreachable", "broken", "busy") and until is None:
        until = at + LASTS_S
    return Fault(at, name, chance.randrange(members), until, chance.choice([2.0, 10.0]), chance.choice([1, 2]))


def _act(chance: random.Random, settings: Settings, members: int, span_s: float) -> Act:
    """The operator loads other settings, sets a weight, or takes an instance away at once."""
    what = chance.choice(["reload", "reload", "weigh", "remove"])
    changed = msgspec.structs.replace(
        settings,
        policy=chance.choice(policies.names()),
        hold=chance.random() < 0.7,
        without=_without(chance),
        slo=chance.choice(SLOS),
        queue_wait_s_max=chance.choice([2.0, 60.0]),
    )
    return Act(
        at_s=chance.random() * span_s,
        what=what,
        instance=f"e{chance.randrange(members)}",
        weight=chance.choice([0.0, 0.5, 2.0]),
        settings=changed if what == "reload" else None,
    )


def _by_time(call: Call) -> int:
    return call.at
