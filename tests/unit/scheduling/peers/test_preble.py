"""Preble's E2: exploit or explore, its load, and what it moves."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.scheduling.policies.peers.preble import Preble
from isochrone.scheduling.policies.peers.preble_load import prefill_s
from tests.support.bench import Bench, text

DOCUMENT = text("document ", 8_192)
"""2,048 tokens."""


def loads(bench: Bench, at_least: int = 1) -> list[float]:
    assert isinstance(bench.policy, Preble)
    return bench.policy._of(bench.pool.slots, at_least)


def naive(bench: Bench, at_least: int = 1) -> list[float]:
    """The loads from their definition."""
    policy = bench.policy
    assert isinstance(policy, Preble)
    sums: dict[int, float] = defaultdict(float)
    for node in policy._loads._booked:
        if node.count < at_least:
            continue
        miss = 1 - node.hit_tokens / node.prompt_tokens
        for slot in node.allocated:
            sums[slot] += miss * node.count * prefill_s(node.tokens, node.context) / len(node.allocated)
            sums[slot] += node.running.get(slot, 0) * node.output_tokens * policy._tpot_s(slot)
    return [sums[slot] for slot in bench.pool.slots]


def holders(bench: Bench) -> set[int]:
    """Slots that the document belongs to."""
    assert isinstance(bench.policy, Preble)
    return bench.policy._tree.find(bench.request(DOCUMENT).blocks)[0].allocated


def test_prefill_time_is_the_published_fit() -> None:
    assert prefill_s(100, 100) == pytest.approx((22 + 0.32) / 900)
    assert prefill_s(200, 500) == pytest.approx((-118 + 250 - 102.4 + 0.32) / 900)
    assert prefill_s(1_000, 2_000) == pytest.approx(
        (108.42571 + 4.209777 + (0.372 + 0.159) / 2 + 1.13 + 3.5 + 4.38) / 900
    )


def test_a_prompt_of_which_most_is_known_goes_to_a_holder() -> None:
    bench = Bench("preble", 3)
    bench.send(DOCUMENT, to=1)
    assert bench.pick(DOCUMENT + text("question ", 2_000)) == 1
    assert bench.pick(DOCUMENT + text("much more ", 9_000)) != 1, "more is new than known: the least load"


def test_of_several_holders_the_least_loaded_is_taken() -> None:
    bench = Bench("preble", 3)
    for position in (0, 1, 1, 1):
        bench.send(DOCUMENT + text(f"question {bench.numbers} ", 2_000), to=position)
    assert bench.pick(DOCUMENT + text("question ", 2_000)) == 0


def test_load_by_hand() -> None:
    """Two questions on a document of 2,048 tokens: the first computes all of it, the second 500 of 2,548."""
    bench = Bench("preble", 2)
    for number in range(2):
        bench.send(DOCUMENT + text(f"question {number} ", 2_000), to=0, max_tokens=100)
    miss = 1 - 2_048 / (2 * 2_548)
    prefill = miss * 2 * prefill_s(2_048, 2_048)
    assert loads(bench) == pytest.approx([prefill + 2 * 100 * 0.15, 0.0])


def test_tpot_is_the_median_that_the_instance_showed() -> None:
    bench = Bench("preble", 2)
    _, first = bench.send(DOCUMENT, to=0)
    bench.later(1)
    bench.first_token(first)
    bench.later(0.9)
    bench.end(first, output_tokens=10)
    before = loads(bench)[0]
    bench.send(DOCUMENT + text("question ", 2_000), to=0, max_tokens=40)
    assert loads(bench)[0] < before + 40 * 0.11
    assert loads(bench) == pytest.approx(naive(bench))


def test_requests_count_for_three_minutes() -> None:
    bench = Bench("preble", 2)
    _, request = bench.send(DOCUMENT, to=0)
    bench.end(request)
    assert loads(bench)[0] > 0
    bench.later(181)
    bench.send(text("other ", 4_000), to=1)
    assert loads(bench)[0] == pytest.approx(0.0, abs=1e-12)
    assert holders(bench) == set()


def test_from_50_requests_an_instance_on_cheap_prefixes_move_to_the_least_loaded() -> None:
    bench = Bench("preble", 2)
    documents = [text(f"document {n} ", 8_192) for n in range(10)]
    for number in range(99):
        _, request = bench.send(documents[number % 10] + text(f"question {number} ", 1_000), to=0, max_tokens=1)
        bench.end(request)
    assert {bench.pick(document + text("next ", 1_000)) for document in documents} == {0}
    bench.send(documents[9] + text("question 99 ", 1_000), to=0, max_tokens=1)
    homes = [bench.pick(document + text("next ", 1_000)) for document in documents]
    assert set(homes) == {0, 1}
    most, least = sorted(loads(bench, at_least=2), reverse=True)
    assert most < 1.5 * least


def test_a_lone_prefix_is_copied_once_its_ttft_has_doubled() -> None:
    bench = Bench("preble", 2)
    for number in range(99):
        _, request = bench.send(DOCUMENT + text(f"question {number} ", 1_000), to=0)
        bench.later(0.1 if number < 50 else 0.3)
        bench.first_token(request)
        bench.end(request)
        bench.later(1.0)
        if number == 49:
            bench.later(40)
    assert holders(bench) == {0}, "too few requests until now"
    bench.send(DOCUMENT + text("question 99 ", 1_000), to=0)
    assert holders(bench) == {0, 1}


def test_a_slot_given_out_again_starts_empty() -> None:
    bench = Bench("preble", 2)
    _, request = bench.send(DOCUMENT, to=1)
    bench.end(request)
    bench.leave(1)
    bench.join("new")
    assert loads(bench) == [0.0, 0.0]
    bench.send(text("small ", 2_000), to=0)
    bench.send(text("large ", 20_000), to=1)
    assert bench.pick(DOCUMENT + text("question ", 2_000)) == 0, "nobody holds the document: the least load"


@given(st.integers(0, 10_000))
def test_running_sums_are_the_definition(seed: int) -> None:
    """Splits, ends, moves, expiry and departures in any order."""
    bench = Bench("preble", 3, seed)
    assert isinstance(bench.policy, Preble)
    bench.policy._ever = 150  # rebalancing is on from the start
    chance, running = bench.chance, []
    for _ in range(60):
        draw = chance.random()
        if running and draw < 0.35:
            request = running.pop(int(chance.random() * len(running)))
            if chance.random() < 0.7:
                bench.first_token(request)
                bench.later(chance.random())
            bench.end(request, output_tokens=int(chance.random() * 30))
        elif draw < 0.4:
            bench.later(chance.random() * 200)
        else:
            body = text(f"system {int(chance.random() * 4)} ", int(chance.random() * 12_000) + 1)
            running.append(bench.send(body + text(f"{chance.random()} ", int(chance.random() * 3_000) + 20))[1])
        bench.policy._loads.expire(bench.now)
        for at_least in (1, 2):
            assert loads(bench, at_least) == pytest.approx(naive(bench, at_least), abs=1e-9)
    for request in running:
        bench.end(request)
    assert all(not node.running for node in bench.policy._tree.nodes())
