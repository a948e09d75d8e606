"""Peers whose price is one formula: production-stack, Llumnix, Mooncake; and Ray's rule."""

from collections import Counter

import pytest

from tests.support.bench import Bench, text

PROMPT = text("home ", 8_192)


def test_production_stack_by_hand() -> None:
    """1 - hit/n + (R - mean)/max(1, mean), for loads 1, 2, 9: mean 4."""
    bench = Bench("production-stack-loadaware", 3)
    for position, load in enumerate((1, 2, 9)):
        bench.load(position, load)
    expected = [1 - 0.5 - 3 / 4, 1 - 2 / 4, 1 + 5 / 4]
    assert bench.prices(PROMPT, hits=[1_024, 0, 0]) == pytest.approx(expected)
    idle = Bench("production-stack-loadaware", 2)
    idle.load(0, 1)
    assert idle.prices(PROMPT, hits=[0, 0]) == pytest.approx([1 + 0.5, 1 - 0.5]), "a mean below 1 counts as 1"


def test_production_stack_gives_up_a_whole_hit_at_twice_the_mean() -> None:
    bench = Bench("production-stack-loadaware", 4)
    for position in range(4):
        bench.load(position, 10 if position else 23)
    assert bench.pick(PROMPT) != 0
    bench.index.insert(0, bench.request(PROMPT).blocks)
    assert bench.pick(PROMPT) == 0, "0 + 9.75/13.25 = 0.74 against 1 - 3.25/13.25 = 0.75"
    bench.load(0, 1)
    assert bench.pick(PROMPT) != 0, "0 + 10.5/13.5 = 0.78 against 1 - 3.5/13.5 = 0.74"


def test_llumnix_by_hand() -> None:
    """(free blocks - blocks waiting) / requests: (3,000 - 125) / 5 and 6,000 / 10."""
    bench = Bench("llumnix", 3)
    bench.load(0, 1, tokens=9_999, decoding=False)
    bench.load(0, 1, tokens=2_000, decoding=False)
    bench.scrape(0, running=4, waiting=1, kv_usage_ratio=0.52, kv_capacity_tokens=100_000)
    bench.scrape(1, running=10, waiting=0, kv_usage_ratio=0.04, kv_capacity_tokens=100_000)
    bench.scrape(2, running=0, waiting=0, kv_usage_ratio=0.9, kv_capacity_tokens=100_000)
    assert bench.prices()[:2] == pytest.approx([-575.0, -600.0])
    assert bench.pick() == 2, "nothing runs there: its blocks last for ever"


def test_llumnix_passes_over_the_busy_while_there_are_others() -> None:
    bench = Bench("llumnix", 2)
    bench.scrape(0, running=100, waiting=0, kv_usage_ratio=0.9, kv_capacity_tokens=100_000)
    bench.scrape(1, running=100, waiting=0, kv_usage_ratio=0.8, kv_capacity_tokens=100_000)
    assert bench.prices()[0] > 1e11, "6.25 steps left, less than 10"
    assert bench.pick() == 1
    bench.scrape(1, running=200, waiting=0, kv_usage_ratio=0.99, kv_capacity_tokens=100_000)
    assert bench.pick() == 0, "all are busy: the one with the most steps left"


def test_llumnix_without_metrics_counts_requests() -> None:
    bench = Bench("llumnix", 2)
    bench.load(0, 1)
    assert bench.pick() == 1


def test_weak_llumnix_knows_no_prefix_and_nothing_sent_since_the_last_report() -> None:
    bench = Bench("llumnix", 2)
    bench.scrape(0, running=10, waiting=0, kv_usage_ratio=0.5, kv_capacity_tokens=100_000)
    bench.scrape(1, running=9, waiting=0, kv_usage_ratio=0.5, kv_capacity_tokens=100_000)
    bench.send(PROMPT, to=0)
    taken = Counter(bench.send(PROMPT)[0] for _ in range(20))
    assert taken == {1: 20}


def test_mooncake_by_hand() -> None:
    bench = Bench("mooncake", 2)
    _, b, _, q = bench.pool.members[0].step_times.coefficients
    bench.load(0, 1, tokens=3_000, decoding=False)
    queue_s = 3_000 * b + 3_000 * 3_000 / 2 * q
    own_s = 1_024 * b + 1_024 * (2_048 - 512) * q
    whole_s = 2_048 * b + 2_048 * 1_024 * q
    assert bench.prices(PROMPT, hits=[1_024, 0]) == pytest.approx([queue_s + own_s, whole_s])


def test_weak_mooncake_does_not_see_decoding() -> None:
    bench = Bench("mooncake", 2)
    bench.load(0, 200)
    assert bench.prices(PROMPT)[0] == bench.prices(PROMPT)[1]


def test_ray_goes_to_whoever_has_the_longest_part_from_a_tenth_on() -> None:
    bench = Bench("ray-prefix-affinity", 3)
    bench.send(text("filler ", 4_000), to=0)
    bench.send(PROMPT[:1_024], to=1)
    assert {bench.pick(PROMPT) for _ in range(20)} == {1}
    assert {bench.pick(PROMPT + text("tail ", 4_000)) for _ in range(20)} == {2}, "a twelfth: the smallest tree"


def test_ray_takes_the_least_busy_of_several_holders() -> None:
    bench = Bench("ray-prefix-affinity", 3)
    bench.send(PROMPT, to=1)
    bench.send(PROMPT, to=2)
    bench.load(1, 1)
    assert {bench.pick(PROMPT) for _ in range(20)} == {2}


def test_weak_no_load_ever_breaks_rays_affinity() -> None:
    bench = Bench("ray-prefix-affinity", 4)
    bench.send(PROMPT, to=3)
    bench.load(3, 500)
    assert bench.pick(PROMPT) == 3


def test_weak_a_new_prompt_goes_to_rays_smallest_tree_however_busy() -> None:
    bench = Bench("ray-prefix-affinity", 2)
    bench.send(text("filler ", 20_000), to=0)
    bench.load(1, 100)
    assert bench.pick(PROMPT) == 1
