"""llm-d's blend of scores, and its affinity filter with token load."""

from collections import Counter

import pytest

from tests.support.bench import Bench, text

PROMPT = text("home ", 8_192)


class TestBlend:
    def test_by_hand(self) -> None:
        """7 - (2 * queue + 2 * (1 - kv) + 3 * blocks of 64 matched / blocks)."""
        bench = Bench("llm-d-blend", 3)
        bench.scrape(0, waiting=0, kv_usage_ratio=0.5)
        bench.scrape(1, waiting=4, kv_usage_ratio=0.1)
        bench.scrape(2, waiting=1, kv_usage_ratio=0.0)
        expected = [7 - (2 + 1.0 + 3 * 16 / 32), 7 - (0 + 1.8 + 0), 7 - (1.5 + 2 + 3 * 7 / 32)]
        assert bench.prices(PROMPT, hits=[1_024, 0, 511]) == pytest.approx(expected)

    def test_equal_queues_all_score_one(self) -> None:
        bench = Bench("llm-d-blend", 2)
        for position in (0, 1):
            bench.scrape(position, waiting=3, kv_usage_ratio=0.0)
        assert bench.prices(text("p ", 4_000)) == [3.0, 3.0]

    def test_weak_a_gap_of_one_request_is_worth_the_whole_weight(self) -> None:
        bench = Bench("llm-d-blend", 2)
        bench.scrape(0, waiting=1, kv_usage_ratio=0.5)
        bench.scrape(1, waiting=0, kv_usage_ratio=0.5)
        one = bench.prices(PROMPT)
        bench.scrape(0, waiting=1_000, kv_usage_ratio=0.5)
        assert bench.prices(PROMPT) == one
        assert one[0] - one[1] == pytest.approx(2.0)
        assert bench.pick(PROMPT) == 1

    def test_weak_between_two_scrapes_everything_goes_to_the_same_instance(self) -> None:
        """llm-d issues 298, 1599, 2515: nothing that was sent since is counted."""
        bench = Bench("llm-d-blend", 4)
        for position, kv in enumerate((0.3, 0.2, 0.1, 0.3)):
            bench.scrape(position, waiting=0, kv_usage_ratio=kv)
        taken = Counter(bench.send(text(f"prompt {n} ", 20_000))[0] for n in range(50))
        assert taken == {2: 50}


class TestTokenLoad:
    def test_price_is_the_share_of_four_mebitokens(self) -> None:
        bench = Bench("llm-d-token-load", 2)
        bench.load(0, 1, tokens=20_000, decoding=False)
        assert bench.prices(text("p ", 4_000)) == pytest.approx([21_000 / 4_194_304, 1_000 / 4_194_304])
        assert bench.prices(PROMPT, hits=[0, 1_000]) == pytest.approx([22_048 / 4_194_304, 1_048 / 4_194_304])

    def test_four_fifths_of_the_blocks_make_an_instance_sticky(self) -> None:
        bench = Bench("llm-d-token-load", 2)
        bench.load(0, 1, tokens=20_000, decoding=False)
        sticky, other = bench.prices(PROMPT, hits=[26 * 64, 0])
        assert sticky < other, "26 of 32 blocks"
        sticky, other = bench.prices(PROMPT, hits=[25 * 64, 0])
        assert other < sticky

    def test_affinity_ends_18_seconds_behind(self) -> None:
        """18 s * 15,928 tokens/s = 286,704 tokens."""
        bench = Bench("llm-d-token-load", 2)
        bench.load(0, 1, tokens=286_704, decoding=False)
        sticky, other = bench.prices(PROMPT, hits=[2_000, 0])
        assert sticky < other
        bench.load(0, 1, tokens=1, decoding=False)
        sticky, other = bench.prices(PROMPT, hits=[2_000, 0])
        assert other < sticky

    def test_tokens_are_released_with_the_first_token(self) -> None:
        bench = Bench("llm-d-token-load", 2)
        _, request = bench.send(PROMPT, to=0)
        bench.first_token(request)
        assert bench.prices(text("p ", 4_000)) == pytest.approx([1_000 / 4_194_304] * 2)

    def test_a_retry_goes_to_the_others(self) -> None:
        bench = Bench("llm-d-token-load", 2)
        assert max(bench.prices(PROMPT, hits=[2_000, 0])) < float("inf")

    def test_weak_a_warm_instance_takes_18_seconds_of_prefill_before_anybody_else_gets_any(self) -> None:
        bench = Bench("llm-d-token-load", 4)
        _, request = bench.send(PROMPT, to=0)
        bench.first_token(request)
        bench.load(0, 1, tokens=250_000, decoding=False)
        assert bench.pick(PROMPT) == 0, "250,000 tokens wait there, none elsewhere"
