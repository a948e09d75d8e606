"""Dynamo's sum, and the two products."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.scheduling.policies.peers.active import ActivePrompts
from tests.support.bench import Bench, text

PROMPT = text("home ", 8_192)


def test_lmetric_by_hand() -> None:
    bench = Bench("lmetric", 3)
    bench.load(0, 2, tokens=500, decoding=False)
    bench.load(0, 3)
    bench.load(1, 1, tokens=4_000, decoding=False)
    assert bench.prices(text("p ", 4_000)) == [(1_000 + 1_000) * 6, (4_000 + 1_000) * 2, 1_000 * 1]
    assert bench.prices(text("p ", 4_000), hits=[900, 0, 0]) == [(1_000 + 100) * 6, (4_000 + 1_000) * 2, 1_000 * 1]


def test_lmetric_forgets_work_with_the_first_token_and_the_request_with_its_end() -> None:
    bench = Bench("lmetric", 1)
    _, request = bench.send(PROMPT)
    assert bench.prices(text("p ", 4_000)) == [(2_048 + 1_000) * 2]
    bench.first_token(request)
    assert bench.prices(text("p ", 4_000)) == [1_000 * 2]
    bench.end(request)
    assert bench.prices(text("p ", 4_000)) == [1_000]


def test_weak_lmetric_prices_by_what_a_request_costs_others_only() -> None:
    """A pool of idle instances: a tie, however much work is pending behind nobody's back."""
    bench = Bench("lmetric", 2)
    bench.load(0, 1, tokens=1_000, decoding=False)
    bench.load(1, 3)
    assert bench.prices(text("p ", 4_000)) == [2_000 * 2, 1_000 * 4]


def test_dynamo_by_hand() -> None:
    """max(0, (P + n)/16 - hit) + blocks of all prompts in flight with this one, shared ones once."""
    bench = Bench("dynamo", 2)
    _, first = bench.send(PROMPT, to=0)
    assert bench.prices(PROMPT, hits=[0, 0]) == [(2_048 + 2_048) / 16 + 128, 128 + 128]
    bench.first_token(first)
    assert bench.prices(PROMPT) == [128 - 2_047 // 16 + 128, 128 + 128]
    assert bench.prices(text("p ", 4_000)) == [62.5 + 128 + 62.5, 62.5 + 62.5]
    bench.end(first)
    assert bench.prices(text("p ", 4_000)) == [125, 125]


def test_dynamo_counts_shared_blocks_once() -> None:
    bench = Bench("dynamo", 1)
    system = text("system ", 4_096)
    for number in range(3):
        bench.send(system + text(f"question {number} ", 2_048))
    pending = bench.pool.members[0].ledger.waiting_tokens
    shared, own = 1_024 / 16, 512 / 16
    assert bench.prices(text("p ", 4_000)) == [(pending + 1_000) / 16 + shared + 3 * own + 62.5]


def test_dynamos_product() -> None:
    bench = Bench("dynamo-lmetric", 1)
    bench.send(PROMPT)
    assert bench.prices(text("p ", 4_000)) == [(2_048 + 1_000) / 16 * (128 + 62.5 + 1)]


def test_weak_dynamo_lets_long_contexts_in_decode_outweigh_pending_prefill() -> None:
    """Units are added one to one: 40,000 tokens of decode, which cost a step little, against seconds of prefill."""
    bench = Bench("dynamo", 2)
    _, request = bench.send(text("long ", 160_000), to=0)
    bench.first_token(request)
    for number in range(3):
        bench.send(text(f"prompt {number} ", 40_000), to=1)
    assert bench.pool.members[0].ledger.waiting_tokens == 0
    assert bench.pool.members[1].ledger.waiting_tokens == 30_000
    assert bench.pick(text("p ", 4_000)) == 0
    _, request = bench.send(text("longer ", 100_000), to=0)
    bench.first_token(request)
    assert bench.pick(text("p ", 4_000)) == 1, "30,000 tokens of prefill ahead, and still preferred"


def test_weak_each_replica_of_dynamo_sees_its_own_share() -> None:
    replicas = [Bench("dynamo", 2, seed) for seed in (1, 2)]
    for bench in replicas:
        bench.send(text("mine ", 8_000), to=0)
    assert [bench.pick(text("p ", 4_000)) for bench in replicas] == [1, 1], "both flee to the same one"


@given(st.integers(0, 10_000))
def test_active_prompts_return_to_zero(seed: int) -> None:
    bench = Bench("dynamo", 2, seed)
    chance = bench.chance
    running: list[str] = []
    for _ in range(30):
        if running and chance.random() < 0.4:
            bench.end(running.pop(int(chance.random() * len(running))))
        else:
            body = text(f"system {int(chance.random() * 3)} ", int(chance.random() * 9_000) + 1)
            running.append(bench.send(body + text(f"{chance.random()} ", 700), to=int(chance.random() * 2))[1])
    for request in running:
        bench.end(request)
    active = bench.policy._active  # type: ignore[attr-defined]
    assert isinstance(active, ActivePrompts)
    assert [active.tokens(slot) for slot in (0, 1)] == [0, 0]
    assert not active._users


@pytest.mark.parametrize("name", ["dynamo", "lmetric", "mooncake", "production-stack-loadaware"])
def test_deeper_hits_cost_less(name: str) -> None:
    bench = Bench(name, 2)
    prices = bench.prices(PROMPT, hits=[1_024, 0])
    assert prices[0] < prices[1]
