"""AIBrix's prefix-cache."""

from tests.support.bench import Bench, text

PROMPT = text("home ", 8_192)


def test_the_deepest_match_is_taken_while_its_load_is_within_a_deviation_of_the_mean() -> None:
    """Loads 2, 4, 6: mean 4, sample deviation 2."""
    bench = Bench("aibrix-prefix-cache", 3)
    bench.send(PROMPT[:2_048], to=0)
    bench.send(PROMPT[:6_144], to=1)
    bench.send(PROMPT, to=2)
    bench.load(0, 1)
    bench.load(1, 3)
    bench.load(2, 5)
    assert bench.pick(PROMPT) == 2, "6 <= 4 + 2"
    bench.load(2, 1)
    assert bench.pick(PROMPT) == 1, "7 > 4.33 + 2.52: the next deepest"


def test_equal_matches_go_to_the_fewer_requests() -> None:
    bench = Bench("aibrix-prefix-cache", 3)
    bench.send(PROMPT, to=1)
    bench.send(PROMPT, to=2)
    bench.load(1, 1)
    assert {bench.pick(PROMPT) for _ in range(20)} == {2}


def test_unknown_prompts_go_to_the_fewest_requests_by_chance() -> None:
    bench = Bench("aibrix-prefix-cache", 3)
    bench.load(1, 1)
    assert {bench.pick(PROMPT) for _ in range(50)} == {0, 2}


def test_beyond_a_spread_of_8_only_the_least_loaded_may_match() -> None:
    bench = Bench("aibrix-prefix-cache", 3)
    _, first = bench.send(PROMPT, to=1)
    bench.end(first)
    bench.load(1, 2)
    bench.load(2, 8)
    assert bench.pick(PROMPT) == 1
    bench.load(2, 1)
    assert bench.pick(PROMPT) == 0, "weak: the prompt's home is not the hot one, and loses its affinity all the same"


def test_the_table_is_800_kilobytes_for_all() -> None:
    bench = Bench("aibrix-prefix-cache", 2)
    _, first = bench.send(PROMPT, to=1)
    bench.end(first)
    bench.load(1, 1)
    bench.load(0, 1)
    ask = bench.ask(bench.request())
    for number in range(7):
        request = bench.request(text(f"filler {number} ", 107_000))
        bench.policy.chosen(ask, request, bench.pool, 0, bench.now)
    assert {bench.pick(PROMPT) for _ in range(20)} == {1}
    bench.policy.chosen(ask, bench.request(text("filler 8 ", 107_000)), bench.pool, 0, bench.now)
    assert {bench.pick(PROMPT) for _ in range(20)} == {0, 1}, "the least recently used went"


def test_blocks_are_kept_for_20_minutes() -> None:
    bench = Bench("aibrix-prefix-cache", 2)
    bench.send(PROMPT, to=1)
    bench.load(0, 1)
    bench.later(20 * 60)
    assert {bench.pick(PROMPT) for _ in range(20)} == {1}
    bench.later(1)
    assert {bench.pick(PROMPT) for _ in range(20)} == {0, 1}


def test_a_slot_given_out_again_starts_empty() -> None:
    bench = Bench("aibrix-prefix-cache", 2)
    _, request = bench.send(PROMPT, to=1)
    bench.end(request)
    bench.leave(1)
    bench.join("new")
    assert {bench.pick(PROMPT) for _ in range(50)} == {0, 1}
