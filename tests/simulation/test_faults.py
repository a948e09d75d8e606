"""Hundreds of seeds, each a workload with faults; the invariants hold in all of them.

A failing seed prints its name: `pytest "tests/simulation/test_faults.py::test_invariants_hold_whatever_fails[seed-17]"`
replays it.
"""

import random

import pytest

from isochrone.nouns.events import Arrived
from isochrone.nouns.instant import SECOND, nanoseconds
from isochrone.nouns.request import Slo
from isochrone.nouns.settings import Settings
from isochrone.scheduling import admission, policies
from isochrone.scheduling.parts import PARTS
from tests.support.rig import Engine, Rig

SEEDS = 120


def swarm(seed: int) -> Rig:
    """One run: which faults there are, how many and when, all drawn from the seed."""
    chance = random.Random(seed)
    names = policies.names()
    settings = Settings(
        policy="equal-cost" if chance.random() < 0.6 else chance.choice(names),
        shadow=chance.choice([None, *names]),
        hold=chance.random() < 0.9,
        queue_requests_max=chance.choice([3, 50, 1000]),
        queue_wait_s_max=chance.choice([2.0, 60.0]),
        first_token_s=chance.choice([2.0, 30.0]),
        samples_warm=chance.choice([0, 10, 50]),
        resume=chance.random() < 0.8,
        drain_move_s=chance.choice([0.0, 1.0, 60.0]),
        slots_default=chance.choice([None, 2, 8]),
        slo=chance.choice([None, Slo(1.0, 0.1, True), Slo(2.0, None, False)]),
        heartbeat_interval_s=0.5,
        without=frozenset(chance.sample(sorted(PARTS), chance.choice([0, 0, 1, 4]))),
        cap_ratio=chance.choice([None, None, 0.6]),
        slow_start_s=chance.choice([0.0, 5.0, 30.0]),
        money_price_s=chance.choice([0.0, 60.0]),
        slo_by_tenant=chance.choice([{}, {"b": Slo(0.5, 0.03, True)}]),
    )
    rig = Rig(settings, engines=chance.choice([1, 2, 4, 7]), seed=seed, token_s=chance.choice([20e-6, 200e-6]))
    rig.kv_capacity_tokens = chance.choice([None, None, 15_000, 100_000])
    for engine in rig.engines.values():
        if chance.random() < 0.2:
            engine.step_s *= chance.choice([1.5, 3.0])
    models = chance.choice([["m"], ["m"], ["m", "n"]])
    for engine_id in list(rig.engines):
        if len(models) > 1 and chance.random() < 0.7:
            rig.serve(engine_id, chance.choice([("m", "n"), ("n",)]))
    tenants = chance.choice([["a"], ["a", "b"], [f"t{number}" for number in range(20)]])
    texts = [bytes([65 + k]) * 40_000 for k in range(6)]
    length_s = 12.0
    for number in range(chance.choice([20, 120])):
        name = f"r{number}"
        when = SECOND + nanoseconds(chance.random() * length_s)
        text = chance.choice(texts)[: chance.choice([100, 2_000, 40_000])]
        request = rig.request(
            name,
            text,
            output=chance.choice([1, 20, 200]),
            priority=chance.choice([0, 0, 1]),
            tenant=chance.choice(tenants),
            model=chance.choice(models),
        )
        rig.at(when, Arrived(request))
        if chance.random() < 0.15:
            rig.at(when + nanoseconds(chance.random() * 3), ("leave", name))
    for _ in range(chance.choice([0, 1, 5])):
        engine_id = f"e{chance.randrange(len(rig.engines))}"
        start = SECOND + nanoseconds(chance.random() * length_s)
        rig.at(start, ("mode", engine_id, chance.choice(["dead", "hung", "busy", "broken"])))
        rig.at(start + nanoseconds(chance.random() * 4), ("mode", engine_id, "up"))
    if chance.random() < 0.3:
        rig.at(SECOND + nanoseconds(chance.random() * length_s), ("withdraw", "e0", chance.random() < 0.7))
    if chance.random() < 0.3:
        late = Engine("late", step_s=chance.choice([0.02, 0.06]))
        rig.at(SECOND + nanoseconds(chance.random() * length_s), ("join", late, chance.choice([None, 4.0])))
    return rig


@pytest.mark.parametrize("seed", range(SEEDS), ids=lambda seed: f"seed-{seed}")
def test_invariants_hold_whatever_fails(seed: int) -> None:
    rig = swarm(seed)
    rig.run()
    rig.check_over()


def test_same_events_same_commands() -> None:
    for seed in (3, 14, 15):
        logs = []
        for _ in range(2):
            rig = swarm(seed)
            rig.run()
            logs.append(rig.log)
        assert logs[0] == logs[1]


def test_without_faults_every_request_is_served() -> None:
    rig = Rig(Settings(), engines=3)
    for number in range(200):
        rig.at(SECOND + number * 20_000_000, Arrived(rig.request(f"r{number}", b"x" * 3000, output=30)))
    rig.run()
    rig.check_over()
    assert set(rig.ended.values()) == {"done"}


def test_a_dead_instance_costs_no_request_that_had_no_byte_yet() -> None:
    rig = Rig(Settings(), engines=3)
    rig.at(SECOND, ("mode", "e1", "dead"))
    for number in range(60):
        rig.at(2 * SECOND + number * 50_000_000, Arrived(rig.request(f"r{number}", output=5)))
    rig.run()
    rig.check_over()
    assert set(rig.ended.values()) == {"done"}


@pytest.mark.parametrize("how", ["dead", "hung", "drained"])
def test_streams_go_on_elsewhere(how: str) -> None:
    """The rig compares every stream with the undisturbed one."""
    settings = Settings(heartbeat_interval_s=0.5, gap_s=100.0, drain_move_s=0.5, retry_tokens_max=1e9)
    rig = Rig(settings, engines=3)
    for number in range(60):
        rig.at(SECOND + number * 20_000_000, Arrived(rig.request(f"r{number}", output=150)))
    rig.at(3 * SECOND, ("withdraw", "e1", True) if how == "drained" else ("mode", "e1", how))
    rig.run()
    rig.check_over()
    assert set(rig.ended.values()) == {"done"}
    assert rig.continued >= 10
    ends = [decision.ended_at or 0 for decision in rig.cluster.decisions(60)]
    assert max(ends) < 30 * SECOND, "nobody has waited for gap_s"


def test_without_resume_a_broken_stream_is_told() -> None:
    rig = Rig(Settings(resume=False), engines=3)
    for number in range(60):
        rig.at(SECOND + number * 20_000_000, Arrived(rig.request(f"r{number}", output=150)))
    rig.at(3 * SECOND, ("mode", "e1", "dead"))
    rig.run()
    rig.check_over()
    assert rig.continued == 0
    assert list(rig.ended.values()).count("failed") >= 10


def test_resuming_draws_on_the_reserve_and_then_on_the_retry_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is lost, then prompt and tokens so far: 40 tokens of each pay for no stream of 50."""
    monkeypatch.setattr(admission, "RESERVE_TOKENS_DEFAULT", 40)
    settings = Settings(retry_tokens_max=40.0, retry_tokens_per_s=0.0, retry_ratio=0.0)
    rig = Rig(settings, engines=3)
    for number in range(30):
        rig.at(SECOND, Arrived(rig.request(f"r{number}", output=150)))
    rig.at(3 * SECOND, ("mode", "e1", "dead"))
    rig.run()
    rig.check_over()
    assert rig.continued == 0
    assert list(rig.ended.values()).count("failed") >= 5


def test_an_instance_that_comes_back_takes_requests_again() -> None:
    rig = Rig(Settings(heartbeat_interval_s=0.5), engines=2)
    rig.at(SECOND, ("mode", "e1", "dead"))
    rig.at(6 * SECOND, ("mode", "e1", "up"))
    for number in range(300):
        rig.at(2 * SECOND + number * 100_000_000, Arrived(rig.request(f"r{number}", output=20)))
    rig.run()
    rig.check_over()
    late = {engine for when, _, engine in rig.dispatches if when > 20 * SECOND}
    assert late == {"e0", "e1"}


def test_a_joining_engine_is_used() -> None:
    rig = Rig(Settings(), engines=1)
    for number in range(100):
        rig.at(2 * SECOND + number * 20_000_000, Arrived(rig.request(f"r{number}", output=100)))
    rig.run(until=3 * SECOND)
    rig.join(Engine("late"))
    rig.run()
    rig.check_over()
    assert rig.engines["late"].taken > 10
