"""Seeds of clusters of other shapes with faults: several gateways, ranks in lock step, pools for prompts and answers.

What is checked here holds whatever the shape. The swarm's checkers (`test_swarm.py`) know more about a plain cluster.
"""

import random
from dataclasses import replace

import pytest

from isochrone.nouns.commands import Dispatch, Record
from isochrone.nouns.events import Ended, Event
from isochrone.nouns.instance import State
from isochrone.nouns.settings import Settings
from isochrone.scheduling import policies
from isochrone.simulator.experts import Experts
from isochrone.simulator.faults import FAULTS, Fault
from isochrone.simulator.fleet import Fleet, fleet, in_pools
from isochrone.simulator.pairs import Pairs
from isochrone.simulator.plan import Plan
from isochrone.simulator.run import Simulation
from isochrone.simulator.workload import Call, Workload

SEEDS = 60
SPAN_S = 8.0
TAKES = {State.READY.value, State.SUSPECT.value, State.PROBING.value}


class Checked(Simulation):
    """Keeps count from outside."""

    def feed(self, event: Event) -> None:
        assert self.now >= self.__dict__.setdefault("last", 0)
        self.__dict__["last"] = self.now
        if isinstance(event, Ended):
            self.open().remove(event.attempt)
        super().feed(event)

    def obey(self, command: object) -> None:
        if isinstance(command, Dispatch):
            assert command.attempt not in self.open()
            self.open().add(command.attempt)
            states = {view.id: view.state for view in self.door_of(command.attempt).instances()}
            assert states[command.instance] in TAKES | {State.EJECTED.value}  # ejected: where there is nobody else
        elif isinstance(command, Record):
            answered = self.__dict__.setdefault("answered", set())
            assert command.decision.request not in answered
            answered.add(command.decision.request)
        super().obey(command)

    def open(self) -> set[int]:
        """Attempts that were dispatched and have not ended."""
        attempts: set[int] = self.__dict__.setdefault("attempts", set())
        return attempts

    def check_over(self) -> None:
        """Everything has come back to zero, in each gateway and on each instance."""
        assert not self.open()
        assert self.cluster.in_flight() == 0
        assert self.cluster.next_deadline() is None
        assert all(queue.depth == 0 for queue in self.cluster.queues())
        for view in self.cluster.instances():
            assert (view.in_flight, view.context_tokens, view.kv_tokens, view.owed_output_tokens) == (0, 0, 0, 0)
        for host in self.hosts.values():
            assert not host.sent
            assert host.engine.pool.used == 0


class CheckedPairs(Checked, Pairs):
    """The same over both legs of each call."""


def cluster(chance: random.Random) -> Fleet:
    ranks = chance.choice([1, 1, 2, 3])
    engines = chance.choice([2, 3])
    experts = Experts(count=64, top=6, devices=4, seed=chance.randrange(9)) if chance.random() < 0.5 else None
    slow = {0: 3.0} if chance.random() < 0.3 else {}
    changes = {"kv_tokens": 16_384} if chance.random() < 0.3 else {}
    made = fleet([("h100-8b", ranks * engines)], slow, changes, ranks, experts)
    return in_pools(made, ranks) if chance.random() < 0.5 else made


def calls(chance: random.Random) -> list[Call]:
    made = []
    for _ in range(chance.choice([20, 120])):
        prompt = chance.choice([1, 40, 700, 6000])
        ids = tuple(range(chance.randrange(prompt // 16 + 1)))
        session = chance.choice([-1, -1, chance.randrange(8)])
        at = round(chance.random() * SPAN_S * 1e9)
        made.append(Call(at, prompt, chance.choice([1, 20, 200]), chance.choice("ab"), ids, session))
    return sorted(made, key=lambda call: call.at)


def fault(chance: random.Random, instances: int) -> Fault:
    at = chance.random() * SPAN_S
    name, until = chance.choice(sorted(FAULTS)), at + chance.random() * 10 + 0.01
    return Fault(at, name, chance.randrange(instances), until, chance.choice([2.0, 10.0]), chance.choice([1, 2]))


def drawn(seed: int) -> Checked:
    chance = random.Random(f"shapes {seed}")
    settings = Settings(
        policy="equal-cost" if chance.random() < 0.6 else chance.choice(policies.names()),
        queue_requests_max=chance.choice([3, 1000]),
        attempts_max=chance.choice([1, 3, 5]),
        first_token_s=chance.choice([2.0, 600.0]),
        gap_s=chance.choice([2.0, 30.0]),
        samples_warm=chance.choice([0, 50]),
        heartbeat_interval_s=chance.choice([0.5, 2.0]),
        drain_move_s=chance.choice([0.0, 60.0]),
    )
    members = cluster(chance)
    faults = tuple(fault(chance, len(members.members)) for _ in range(chance.choice([0, 1, 4])))
    plan = Plan(settings, members, told=chance.choice(["nothing", "slo", "shed"]), faults=faults)
    plan = replace(
        plan,
        gateways=chance.choice([1, 2, 5]),
        sticky=chance.random() < 0.5,
        link_gbps=chance.choice([1.0, 25.0, 400.0]),
    )
    kind = CheckedPairs if members.paired else Checked
    return kind(plan, Workload(f"shapes {seed}", calls(chance), 16), seed)


@pytest.mark.parametrize("seed", range(SEEDS), ids=lambda seed: f"seed-{seed}")
def test_invariants_hold_in_every_shape(seed: int) -> None:
    simulation = drawn(seed)
    run = simulation.run()
    simulation.check_over()
    legs = simulation.plan.fleet.paired
    prompts = run.tally.ended[0::2] if legs else run.tally.ended  # the other leg is not sent where the prompt failed
    assert all(ended >= 0 for ended in prompts)


def test_the_same_seed_gives_the_same_run() -> None:
    for seed in range(8):
        runs = [drawn(seed).run().tally for _ in range(2)]
        assert runs[0].ended == runs[1].ended
        assert runs[0].outcomes == runs[1].outcomes
