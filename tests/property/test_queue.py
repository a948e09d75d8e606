"""The late-binding queue against a naive reading of its rule."""

import random

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from isochrone.nouns.instant import SECOND, Instant
from isochrone.nouns.settings import Settings
from isochrone.scheduling import price
from isochrone.scheduling.fairness import Fairness
from isochrone.scheduling.lengths import OutputLengths
from isochrone.scheduling.opening import is_open
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask, derive
from isochrone.scheduling.queue import HOLD_PATIENCE, Held, HeldQueue, order_key
from tests.support.rows import flight, make_pool

SETTINGS = Settings(hold_chunks=2.0, slots_default=8, cap_ratio=0.6)


def held(number: int, chance: random.Random, positions: int) -> Held:
    tokens = chance.randrange(1, 30_000)
    hits = [chance.choice([0, 0, chance.randrange(tokens)]) for _ in range(positions)]
    sheddable = chance.random() < 0.5
    ask = Ask(
        prompt_tokens=tokens,
        output_tokens=chance.uniform(0, 500),
        hits=chance.choice([None, hits]),
        sheddable=sheddable,
        ttft_slo_s=2.0 if sheddable else 0.0,
        step_s_max=chance.choice([0.0, 0.0, 0.02, 0.04]),
    )
    arrived = chance.randrange(SECOND)
    barred = frozenset(chance.sample(range(positions), k=chance.choice([0, 0, 1])))
    priority = chance.choice([0, 0, 1])
    return Held(
        request=f"r{number}",
        ask=ask,
        since=arrived,
        arrived_at=arrived,
        key=order_key(arrived, priority, chance.random()),
        barred=barred,
        priority=priority,
        line=chance.randrange(3),
        apart=chance.random() < 0.1,
    )


def tenants(chance: random.Random) -> Fairness | None:
    """Three tenants, or none to be told apart."""
    if chance.random() < 0.5:
        return None
    fairness = Fairness()
    for name in "abc":
        fairness.arrived(name)
        fairness.charge(name, chance.choice([0, 100, 5_000]), 0)
    return fairness


def naive(waiting: list[Held], pool: Pool, now: Instant, fairness: Fairness | None) -> tuple[str, int] | None:
    """The rule as it is written, request by request."""

    def turn(held: Held) -> tuple[int, float, float]:
        return -held.priority, float(fairness.counters[held.line]) if fairness is not None else 0.0, held.key

    for one in sorted((held for held in waiting if not held.apart), key=turn):
        prices = price.equal_cost(one.ask, pool.rows, now)
        for position, row in enumerate(pool.rows):
            over_kv = row.has_slot and not row.has_room
            if over_kv or row.slot in one.barred:
                prices[position] = float("inf")
        hits = one.ask.hits or [0] * len(prices)
        takers = [
            p
            for p, row in enumerate(pool.rows)
            if prices[p] < float("inf") and row.has_room and is_open(one.ask, row, now, SETTINGS, hits[p], one.since)
        ]
        if not takers:
            continue
        best = min(takers, key=lambda p: prices[p])
        idle = any(pool.rows[p].idle for p in takers)
        slack_s = SETTINGS.hold_slack_sheddable_s if one.ask.sheddable else SETTINGS.hold_slack_s
        slack_s += HOLD_PATIENCE * (now - one.since) / SECOND
        cheapest = prices.index(min(prices))
        saved_s = (hits[cheapest] - hits[best]) * price.token_price_s(pool.rows[best])
        if idle or prices[best] <= min(prices) + slack_s or (not one.ask.sheddable and saved_s <= slack_s):
            return one.request, best
    return None


def _uncapped(ask: Ask) -> Ask:
    return msgspec.structs.replace(ask, step_s_max=0.0)


@given(st.integers(0, 100_000), st.integers(2, 7), st.integers(0, 40), st.integers(0, 2 * SECOND))
def test_best_is_what_the_rule_says(seed: int, positions: int, count: int, later: int) -> None:
    chance = random.Random(seed)
    pool = make_pool(positions, seed, SETTINGS)
    queue = HeldQueue()
    waiting: dict[str, Held] = {}
    now = SECOND + later
    lengths = OutputLengths()
    for number in range(count):
        one = held(number, chance, positions)
        queue.add(one, pool)
        waiting[one.request] = one
        if chance.random() < 0.2:
            gone = chance.choice(sorted(waiting))
            assert queue.remove(gone) is waiting.pop(gone)
        if chance.random() < 0.3:
            busier = sorted(chance.sample(range(positions), k=chance.randint(1, positions)))
            for position in busier:
                instance = pool.members[position]
                instance.ledger.enter(flight(10_000 + number, chance.randrange(1, 9_000), SECOND), SECOND)
                pool.marked.add(instance.slot)
            changed = pool.refresh(SECOND, lambda i, at: derive(i, SETTINGS, lengths, at))
            assert list(changed) == busier
            queue.reprice(pool, changed)
    somewhere = {
        one.request
        for one in waiting.values()
        for position, row in enumerate(pool.rows)
        if is_open(_uncapped(one.ask), row, now, SETTINGS, (one.ask.hits or [0] * positions)[position], one.since)
    }
    assert {one.request for one in queue.some_open(pool, now, SETTINGS)} == somewhere
    fairness = tenants(chance)
    choice = queue.best(pool, now, SETTINGS, fairness)
    expected = naive(list(waiting.values()), pool, now, fairness)
    assert (choice is None) == (expected is None)
    if choice is not None:
        found, position, prices = choice
        assert (found.request, position) == expected
        plain = np.array(price.equal_cost(found.ask, pool.rows, now))
        seen = np.asarray(prices)
        np.testing.assert_allclose(seen[np.isfinite(seen)], plain[np.isfinite(seen)], rtol=1e-9)


def test_priority_goes_first_then_age_then_short_work() -> None:
    assert order_key(5 * SECOND, 1, 2.0) < order_key(0, 0, 0.0)
    assert order_key(0, 0, 0.1) < order_key(0, 0, 1.0)
    assert order_key(0, 0, 99.0) < order_key(7 * SECOND, 0, 0.0), "long work waits a bounded time"
