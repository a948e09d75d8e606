"""smg's four policies: their rules by hand, and what users found wrong with them."""

from collections import Counter

import pytest

from tests.support.bench import Bench, text

PROMPT = text("home ", 8_192)
OTHER = text("else ", 8_192)


class TestCacheAware:
    def test_a_known_prompt_goes_home_whatever_the_load_within_the_thresholds(self) -> None:
        bench = Bench("smg-cache-aware", 3)
        bench.send(PROMPT, to=1)
        bench.load(1, 31)
        assert bench.pick(PROMPT) == 1, "32 against 0: not more than 32"

    @pytest.mark.parametrize(("loads", "home"), [((33, 0, 0), False), ((32, 0, 0), True), ((400, 366, 366), True)])
    def test_balance_is_absolute_and_relative(self, loads: tuple[int, ...], home: bool) -> None:
        """33 more than the least, and more than 1.1 times it: 400 against 366 is 34 more, and 1.093 times."""
        bench = Bench("smg-cache-aware", 3)
        _, request = bench.send(PROMPT, to=0)
        bench.end(request)
        for position, load in enumerate(loads):
            bench.load(position, load)
        assert (bench.pick(PROMPT) == 0) == home

    def test_more_than_half_must_match(self) -> None:
        bench = Bench("smg-cache-aware", 2)
        bench.send(PROMPT, to=1)
        assert bench.pick(PROMPT + text("tail ", 8_000)) == 1
        assert bench.pick(PROMPT + text("tail ", 8_192)) == 0, "exactly half is too little"

    def test_shortest_queue_breaks_ties_by_requests_ever_sent(self) -> None:
        bench = Bench("smg-cache-aware", 3)
        for expected in (0, 1, 2, 0):
            position, request = bench.send(text(f"p{bench.numbers} ", 600))
            bench.end(request)
            assert position == expected

    def test_weak_one_hot_instance_turns_affinity_off_for_the_whole_fleet(self) -> None:
        """vllm-router PR 238, sglang issue 32195."""
        bench = Bench("smg-cache-aware", 4)
        bench.send(PROMPT, to=1)
        bench.load(1, 1)
        assert bench.pick(PROMPT) == 1
        bench.load(3, 33)
        assert bench.pick(PROMPT) == 0, "the prompt's home is idle enough; somebody else is hot"

    def test_weak_each_gateway_sees_its_own_share_of_the_load(self) -> None:
        """Two gateways, 60 requests on one instance: neither notices (smg PR 1621)."""
        gateways = [Bench("smg-cache-aware", 2, seed) for seed in (1, 2)]
        for bench in gateways:
            bench.send(PROMPT, to=0)
            bench.load(0, 29)
        assert [bench.pick(PROMPT) for bench in gateways] == [0, 0]
        alone = Bench("smg-cache-aware", 2)
        alone.send(PROMPT, to=0)
        alone.load(0, 59)
        assert alone.pick(PROMPT) == 1

    def test_weak_a_shared_system_prompt_gathers_everything_on_one_instance(self) -> None:
        """sglang issue 34513."""
        bench = Bench("smg-cache-aware", 4)
        system = text("system ", 4_096)
        taken = Counter(bench.send(system + text(f"question {n} ", 2_000))[0] for n in range(33))
        assert taken == {0: 33}
        assert bench.send(system + text("one more ", 2_000))[0] == 1, "only the thresholds end it"

    def test_weak_one_instance_is_named_for_a_prefix_however_many_hold_it(self) -> None:
        bench = Bench("smg-cache-aware", 3)
        bench.send(PROMPT, to=2)
        bench.send(PROMPT, to=0)
        bench.load(2, 20)
        assert bench.pick(PROMPT) == 2, "the one that brought it in, busy as it is"

    def test_weak_the_size_of_requests_is_not_seen(self) -> None:
        bench = Bench("smg-cache-aware", 2)
        bench.load(0, 1, tokens=90_000, decoding=False)
        bench.load(1, 2, tokens=10)
        assert bench.pick(OTHER) == 0

    def test_a_sweep_cuts_each_tree_to_10000_characters(self) -> None:
        bench = Bench("smg-cache-aware", 2)
        long = text("long ", 40_000)
        bench.send(long, to=1)
        assert bench.pick(long) == 1
        bench.later(30)
        bench.send(OTHER, to=0)
        assert bench.pick(long) == 0

    def test_where_the_named_instance_is_gone_the_first_is_taken(self) -> None:
        bench = Bench("smg-cache-aware", 3)
        bench.send(PROMPT, to=1)
        bench.load(0, 5)
        bench.pool.members[1].life.drain()
        bench._derive()
        assert bench.pool.slots == [0, 2]
        assert bench.pick(PROMPT) == 0

    def test_a_slot_given_out_again_starts_empty(self) -> None:
        bench = Bench("smg-cache-aware", 2)
        _, request = bench.send(PROMPT, to=1)
        bench.end(request)
        bench.leave(1)
        assert bench.join("new").slot == 1
        bench.load(1, 1)
        assert bench.pick(PROMPT) == 0

    def test_the_launcher_has_wider_thresholds(self) -> None:
        bench = Bench("smg-cache-aware-launcher", 2)
        bench.send(PROMPT, to=1)
        bench.load(1, 63)
        assert bench.pick(PROMPT + text("tail ", 16_000)) == 1, "a third is enough, and 64 is not more than 64"
        bench.load(1, 1)
        assert bench.pick(PROMPT) == 0


class TestLeastLoad:
    def test_formula(self) -> None:
        """(last two of three waiting prompts + sent) / rate + 0.15 k/(1-k)."""
        bench = Bench("smg-least-load", 2)
        bench.load(0, 1, tokens=7_000, decoding=False)
        bench.load(0, 2, tokens=500, decoding=False)
        bench.scrape(0, waiting=2, kv_usage_ratio=0.5, generation_tokens=0.0)
        bench.scrape(1, waiting=0, kv_usage_ratio=0.9, generation_tokens=0.0)
        assert bench.prices() == pytest.approx([1_000 / 2_000 + 0.15, 0.15 * 9])
        bench.send(text("p ", 4_000), to=1)
        assert bench.prices() == pytest.approx([1_000 / 2_000 + 0.15, 1_000 / 2_000 + 0.15 * 9])

    def test_decode_rate_stands_in_for_prefill_rate(self) -> None:
        bench = Bench("smg-least-load", 2)
        for span_s, generated in ((0, 0.0), (10, 5_000.0)):
            bench.later(span_s)
            bench.scrape(0, waiting=0, kv_usage_ratio=0.0, generation_tokens=generated)
            bench.scrape(1, waiting=0, kv_usage_ratio=0.0, generation_tokens=0.0)
        bench.send(text("p ", 4_000), to=0)
        bench.send(text("q ", 4_000), to=1)
        assert bench.prices() == pytest.approx([1_000 / 500, 1_000 / 2_000]), "the busy one gave 500 tokens/s"

    def test_polls_every_ten_seconds_and_counts_what_it_sent_since(self) -> None:
        bench = Bench("smg-least-load", 2)
        for position in (0, 1):
            bench.scrape(position, waiting=0, kv_usage_ratio=0.0)
        bench.send(text("p ", 4_000), to=0)
        bench.later(9.9)
        bench.scrape(0, waiting=50, kv_usage_ratio=0.9)
        assert bench.prices() == pytest.approx([0.5, 0.0]), "not polled yet"
        bench.later(0.1)
        bench.scrape(0, waiting=0, kv_usage_ratio=0.9)
        assert bench.prices() == pytest.approx([0.15 * 9, 0.0]), "the poll is taken to hold what was sent"

    def test_unpolled_instances_are_compared_by_requests(self) -> None:
        bench = Bench("smg-least-load", 2)
        bench.load(0, 3)
        assert bench.prices() == [3.0, 0.0]
        bench.scrape(1, waiting=0, kv_usage_ratio=0.0)
        assert bench.prices() == pytest.approx([3 * 1024 / 2000, 0.0])
        bench.later(30.1)
        assert bench.prices() == [3.0, 0.0], "a poll is forgotten after 30 s"

    def test_weak_it_knows_no_prefix(self) -> None:
        bench = Bench("smg-least-load", 2)
        for position in (0, 1):
            bench.scrape(position, waiting=0, kv_usage_ratio=0.0)
        bench.send(PROMPT, to=0)
        assert bench.pick(PROMPT) == 1


class TestPowerOfTwo:
    def test_compares_kv_usage_as_polled(self) -> None:
        bench = Bench("smg-power-of-two", 2)
        bench.scrape(0, kv_usage_ratio=0.2)
        bench.scrape(1, kv_usage_ratio=0.6)
        bench.load(0, 10)
        assert {tuple(bench.prices()) for _ in range(20)} == {(0.0, 1.0)}
        bench.later(9)
        bench.scrape(0, kv_usage_ratio=0.9)
        assert {tuple(bench.prices()) for _ in range(20)} == {(0.0, 1.0)}, "polled every 10 s"
        bench.later(1)
        bench.scrape(0, kv_usage_ratio=0.9)
        assert {tuple(bench.prices()) for _ in range(20)} == {(1.0, 0.0)}

    def test_one_unknown_makes_it_compare_requests(self) -> None:
        bench = Bench("smg-power-of-two", 2)
        bench.scrape(0, kv_usage_ratio=0.9)
        bench.load(1, 1)
        assert {tuple(bench.prices()) for _ in range(20)} == {(0.0, 1.0)}

    def test_draws_every_pair(self) -> None:
        bench = Bench("smg-power-of-two", 4)
        pairs = {tuple(position for position, price in enumerate(bench.prices()) if price < 2) for _ in range(200)}
        assert len(pairs) == 6


class TestPrefixHash:
    def test_equal_beginnings_meet(self) -> None:
        bench = Bench("smg-prefix-hash", 8)
        beginning = text("b ", 1_024)
        assert len({bench.pick(beginning + text(f"{n} ", 3_000)) for n in range(20)}) == 1

    def test_only_256_tokens_count(self) -> None:
        bench = Bench("smg-prefix-hash", 8)
        half = text("b ", 512)
        assert len({bench.pick(half + text(f"{n} ", 3_000)) for n in range(20)}) > 1

    def test_the_ring_shares_out_evenly_enough(self) -> None:
        bench = Bench("smg-prefix-hash", 4)
        shares = Counter(bench.pick(text(f"prompt {n} ", 1_500)) for n in range(1_000))
        assert all(150 < shares[position] < 350 for position in range(4))

    def test_leaves_an_instance_with_more_than_1_25_times_the_mean(self) -> None:
        bench = Bench("smg-prefix-hash", 2)
        home = bench.pick(PROMPT)
        for position in (0, 1):
            bench.load(position, 7)
        bench.load(home, 2)
        assert bench.pick(PROMPT) == home, "9 <= 1.25 * (16 + 1) / 2 = 10.6"
        bench.load(home, 3)
        assert bench.pick(PROMPT) == home, "12 <= 1.25 * (19 + 1) / 2 = 12.5"
        bench.load(home, 2)
        assert bench.pick(PROMPT) != home, "14 > 1.25 * (21 + 1) / 2 = 13.75"

    def test_a_joining_instance_takes_only_what_it_wins(self) -> None:
        bench = Bench("smg-prefix-hash", 4)
        prompts = [text(f"prompt {n} ", 1_500) for n in range(300)]
        before = [bench.pick(prompt) for prompt in prompts]
        bench.join("late")
        after = [bench.pick(prompt) for prompt in prompts]
        assert {new for old, new in zip(before, after, strict=True) if old != new} == {4}

    def test_short_prompts_go_to_the_fewest_requests(self) -> None:
        bench = Bench("smg-prefix-hash", 3)
        bench.load(0, 1)
        bench.load(2, 1)
        assert bench.pick(b"hello") == 1
