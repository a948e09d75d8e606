"""Late binding for policies that price for themselves."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.nouns.events import Arrived
from isochrone.nouns.instant import SECOND
from isochrone.nouns.request import Request, Slo
from isochrone.nouns.settings import Settings
from isochrone.scheduling import policies
from isochrone.scheduling.binding import second_best
from isochrone.scheduling.opening import is_open
from isochrone.scheduling.places import Places
from isochrone.scheduling.price import Ask, forecast
from tests.support.rig import Rig
from tests.support.rows import make_pool

WARM = Settings(samples_warm=0)
QUEUED = [f"{name}+admission" for name in policies.names() if policies.exists(f"{name}+admission")]


def test_every_policy_that_holds_nothing_can_be_put_behind_the_queue() -> None:
    assert len(QUEUED) == len(policies.names()) - 1
    assert not policies.exists("equal-cost+admission")
    assert not policies.exists("nothing+admission")
    with pytest.raises(KeyError):
        policies.make("equal-cost+admission", random.Random(0))
    policy = policies.make("lmetric+admission", random.Random(0))
    assert policy.name == "lmetric+admission"
    assert policy.holds
    assert not policy.priced_by_queue


@given(st.integers(1, 40_000), st.integers(1, 9), st.integers(0, 10_000))
@settings(max_examples=20)
@pytest.mark.parametrize("name", QUEUED)
def test_prices_are_the_policys_own(name: str, tokens: int, count: int, seed: int) -> None:
    pool = make_pool(count, seed)
    ask, request = Ask(prompt_tokens=tokens, output_tokens=9.0), Request(id="r", model="m", path="/v1/completions")
    inner = policies.make(name.removesuffix("+admission"), random.Random(7)).prices(ask, request, pool, SECOND)
    outer = policies.make(name, random.Random(7)).prices(ask, request, pool, SECOND)
    assert list(inner) == list(outer)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=7), st.integers(0, 10_000))
def test_second_best_is_what_the_rule_says(liking: list[int], seed: int) -> None:
    config = Settings(hold_chunks=1.0)
    pool = make_pool(len(liking), seed, config)
    ask, now = Ask(prompt_tokens=2_000, output_tokens=50.0), SECOND
    prices = [float(place) for place in liking]
    best = min(range(len(liking)), key=liking.__getitem__)
    takers = [p for p, row in enumerate(pool.rows) if is_open(ask, row, now, config)]
    found = second_best(ask, pool.rows, prices, best, now, config)
    assert second_best(ask, pool.rows, prices, best, now, config, places=Places(pool.rows)) == found
    if not takers:
        assert found is None
        return
    liked = min(takers, key=liking.__getitem__)
    late_s = forecast(ask, pool.rows[liked], liked, now)[0] - forecast(ask, pool.rows[best], best, now)[0]
    idle = [p for p in takers if pool.rows[p].idle]
    if late_s <= config.hold_slack_s:
        assert found == liked
    elif idle:
        assert found == min(idle, key=liking.__getitem__)
    else:
        assert found is None


def burst(policy: str, count: int = 60, **fields: object) -> Rig:
    """A burst on two warm engines."""
    rig = Rig(Settings(policy=policy, samples_warm=0, **fields), engines=2)  # type: ignore[arg-type]
    for number in range(count):
        rig.feed(Arrived(rig.request(f"r{number}", b"%d" % number * 9_000, output=5)))
    return rig


@pytest.mark.parametrize("name", ["lmetric", "round-robin", "smetric", "llm-d-token-load"])
def test_held_requests_go_when_there_is_room_and_all_are_served(name: str) -> None:
    plain, held = burst(name), burst(f"{name}+admission")
    assert len(plain.dispatches) == 60
    assert 2 <= len(held.dispatches) < 60
    assert held.cluster.queues()[0].depth == 60 - len(held.dispatches)
    held.run()
    held.check_over()
    assert Counter(held.ended.values()) == {"done": 60}


def test_without_hold_it_is_the_plain_policy() -> None:
    assert burst("lmetric+admission", hold=False).dispatches == burst("lmetric").dispatches


def test_sheddable_requests_are_shed() -> None:
    rig = burst("lmetric+admission", count=80, slo=Slo(0.5, None, True))
    rig.run()
    rig.check_over()
    assert "refused:slo_unattainable" in rig.ended.values()
    plain = burst("lmetric", count=80, slo=Slo(0.5, None, True))
    plain.run()
    assert set(plain.ended.values()) == {"done"}


def test_a_hot_holder_is_waited_for_only_while_that_is_worth_it() -> None:
    """All prompts begin alike; Ray's affinity alone would leave one engine idle for ever."""
    plain, held = (
        Rig(Settings(policy=policy, samples_warm=0), engines=2)
        for policy in ("ray-prefix-affinity", "ray-prefix-affinity+admission")
    )
    for rig in (plain, held):
        for number in range(60):
            rig.feed(Arrived(rig.request(f"r{number}", b"shared" * 2_000 + b"%d" % number * 20_000, output=5)))
        rig.run()
        rig.check_over()
    assert {engine for _, _, engine in plain.dispatches} == {plain.dispatches[0][2]}
    assert len({engine for _, _, engine in held.dispatches}) == 2


def test_priority_goes_first_under_any_policy() -> None:
    rig = burst("lmetric+admission")
    for number in range(5):
        rig.feed(Arrived(rig.request(f"urgent{number}", b"%d" % number * 9_000, output=5, priority=1)))
    before = len(rig.dispatches)
    rig.run()
    rig.check_over()
    assert {request for _, request, _ in rig.dispatches[before : before + 5]} == {f"urgent{n}" for n in range(5)}
