"""Peers in a cluster with faults: they hear of everything, and what they remember of requests comes out even."""

import random
from typing import Any

import pytest

from isochrone.nouns.events import Arrived
from isochrone.nouns.instant import SECOND, nanoseconds
from isochrone.nouns.settings import Settings
from isochrone.scheduling import policies
from isochrone.scheduling.policies.peers import PEERS
from tests.support.rig import Engine, Rig

NAMES = [peer.name for peer in PEERS]


def run(policy: str, seed: int, shadow: str | None = None) -> Rig:
    """Shared beginnings, clients that leave, engines that fail, one that goes and one that joins in its slot."""
    chance = random.Random(seed)
    rig = Rig(Settings(policy=policy, shadow=shadow, samples_warm=0, heartbeat_interval_s=0.5), engines=4, seed=seed)
    texts = [bytes([65 + k]) * 24_000 for k in range(4)]
    for number in range(80):
        when = SECOND + nanoseconds(chance.random() * 6)
        text = chance.choice(texts)[: chance.choice([100, 4_000, 24_000])] + b"%d" % number * chance.choice([1, 300])
        rig.at(when, Arrived(rig.request(f"r{number}", text, output=chance.choice([1, 20, 60]))))
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
    return rig


def assert_nothing_left(policy: Any) -> None:
    """Nothing of any request is left in the policy; prefixes and lessons may be."""
    policy = getattr(policy, "_inner", policy)
    match policy.name:
        case "dynamo" | "dynamo-lmetric":
            assert not policy._active._entered
            assert not policy._active._users
            assert not any(policy._active._tokens.values())
        case "smetric" | "smetric-attention":
            assert not policy._charges
            assert all(pending == 0 for pending in policy._pending.values())
        case "preble":
            assert not policy._sent
            assert all(not node.running for node in policy._tree.nodes())


@pytest.mark.parametrize("suffix", ["", "+admission"])
@pytest.mark.parametrize("name", NAMES)
def test_all_requests_come_to_an_end_and_nothing_is_left(name: str, suffix: str) -> None:
    for seed in (1, 2):
        rig = run(name + suffix, seed)
        assert {engine for _, _, engine in rig.dispatches} >= {"e1", "e2", "e3"} or name == "ray-prefix-affinity"
        assert_nothing_left(rig.cluster._world.policy)


@pytest.mark.parametrize("name", NAMES)
def test_as_a_shadow_too(name: str) -> None:
    rig = run("least-request", 3, shadow=name)
    assert_nothing_left(rig.cluster._world.shadow)


@pytest.mark.parametrize("name", NAMES)
def test_same_events_same_choices(name: str) -> None:
    assert run(name, 4).dispatches == run(name, 4).dispatches


def test_only_peers_that_listen_are_told() -> None:
    for name in policies.names():
        policy = policies.make(name, random.Random(0))
        kind = type(policy)
        hears = any(
            getattr(kind, call) is not getattr(policies.base.Quiet, call)
            for call in ("observed", "first_token", "ended", "gone")
        )
        assert policy.listens == hears, name
