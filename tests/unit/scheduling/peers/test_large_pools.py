"""Large pools are priced in arrays: the same prices as the loop over instances, to the last tie, whatever happens."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.nouns.events import Arrived
from isochrone.nouns.instant import SECOND, Instant, nanoseconds
from isochrone.nouns.request import Request, Slo
from isochrone.nouns.settings import Settings
from isochrone.scheduling import policies, pool
from isochrone.scheduling.policies.base import Priced
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import VECTOR_FROM, Ask
from tests.support.bench import Bench, text
from tests.support.rig import Engine, Rig
from tests.support.rows import make_pool

IN_ARRAYS = ["dynamo", "dynamo-lmetric", "estimated-time", "lmetric", "smetric", "smetric-attention"]


class Twice:
    """A policy that is asked in arrays and by its loop, and must say the same."""

    def __init__(self, policy: Any, chance: random.Random) -> None:
        self._policy, self._chance = policy, chance
        self.in_arrays = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def prices(self, ask: Ask, request: Request, pool: Pool, now: Instant) -> Priced:
        state, places = self._chance.getstate(), pool.places
        pool.places = None
        expected = list(self._policy.prices(ask, request, pool, now))
        after, pool.places = self._chance.getstate(), places
        self._chance.setstate(state)
        found: Priced = self._policy.prices(ask, request, pool, now)
        assert list(found) == expected
        assert self._chance.getstate() == after
        self.in_arrays += places is not None
        return found


def eventful(policy: str, seed: int) -> tuple[Rig, Twice]:
    """Shared beginnings, sessions, clients that leave, engines that fail, one that goes and one that joins."""
    chance = random.Random(seed)
    config = Settings(policy=policy, samples_warm=0, heartbeat_interval_s=0.5, hold_chunks=1.0)
    rig = Rig(config, engines=5, seed=seed)
    world = rig.cluster._world
    twice = Twice(world.policy, world.chance)  # type: ignore[arg-type]
    world.policy = twice
    beginnings = [bytes([65 + k]) * 24_000 for k in range(3)]
    for number in range(60):
        when = SECOND + nanoseconds(chance.random() * 6)
        body = chance.choice(beginnings)[: chance.choice([0, 4_000, 24_000])] + b"%d" % number * chance.choice([1, 900])
        slo = Slo(2.0, 0.1, True) if chance.random() < 0.5 else None
        request = rig.request(f"r{number}", body, output=chance.choice([1, 20, 60]), slo=slo)
        rig.at(when, Arrived(request))
        if chance.random() < 0.15:
            rig.at(when + nanoseconds(chance.random()), ("leave", f"r{number}"))
    rig.at(2 * SECOND, ("mode", "e1", "dead"))
    rig.at(4 * SECOND, ("mode", "e1", "up"))
    rig.at(3 * SECOND, ("mode", "e2", "busy"))
    rig.at(nanoseconds(3.5), ("mode", "e2", "up"))
    rig.at(3 * SECOND, ("withdraw", "e0", True))
    rig.run(until=5 * SECOND)
    rig.join(Engine("late"))
    rig.run()
    rig.check_over()
    return rig, twice


@pytest.mark.parametrize("suffix", ["", "+admission"])
@pytest.mark.parametrize("name", IN_ARRAYS)
def test_a_cluster_decides_in_arrays_as_it_does_by_the_loop(
    name: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (1, 2):
        by_loop, _ = eventful(name + suffix, seed)
        with monkeypatch.context() as patch:
            patch.setattr(pool, "VECTOR_FROM", 2)
            in_arrays, twice = eventful(name + suffix, seed)
        assert twice.in_arrays > 30
        assert in_arrays.dispatches == by_loop.dispatches
        assert in_arrays.ended == by_loop.ended


@given(st.integers(0, 10_000), st.integers(1, 60_000), st.booleans())
@settings(max_examples=15)
@pytest.mark.parametrize("name", IN_ARRAYS)
def test_prices_of_any_large_pool(name: str, seed: int, tokens: int, hit: bool) -> None:
    chance = random.Random(seed)
    members = make_pool(VECTOR_FROM, seed)
    policy = Twice(policies.make(name, chance), chance)
    hits = [chance.choice([0, tokens // 2, tokens - 1]) for _ in members.rows] if hit else None
    ask = Ask(prompt_tokens=tokens, output_tokens=90.0, hits=hits)
    policy.prices(ask, Request(id="r", model="m", path="/v1/completions"), members, SECOND)
    assert policy.in_arrays == 1


@pytest.mark.parametrize("name", IN_ARRAYS)
def test_prefixes_in_flight_and_members_that_change(name: str) -> None:
    bench = Bench(name, VECTOR_FROM + 2)
    twice = Twice(bench.policy, bench.chance)
    bench.policy = twice
    system, sent = text("system ", 6_000), []
    for number in range(90):
        body = (system + text(f"user {number % 7} ", 3_000)) * (number % 3 > 0) + text(
            f"q{number} ", 700 * (number % 4)
        )
        sent.append(bench.send(body, to=None if number % 2 else number % 5, session=f"s{number % 9}")[1])
        bench.later(0.01)
        if number % 3 == 0:
            bench.first_token(sent[-1])
        if number % 4 == 0:
            bench.end(sent.pop(len(sent) // 2))
    homes = {request: home for request, (_, _, home) in bench.flights.items()}
    gone = bench.pool.members[2]
    for request in [request for request in sent if homes[request] is gone]:
        bench.end(request)
    bench.leave(2)
    bench.send(system, to=2)
    bench.join("new")
    bench.pick(system + text("user 1 ", 3_000), session="s1")
    bench.pick(b"")
    assert twice.in_arrays > 40
