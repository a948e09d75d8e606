"""SMetric: work times requests, sessions that stay while they meet their target, rates from first tokens."""

import pytest

from tests.support.bench import Bench, text

PROMPT = text("home ", 8_192)
"""2,048 tokens."""
NEXT = PROMPT + text("next ", 2_048)


def taught(bench: Bench, position: int, rate: float, samples: int = 8) -> None:
    """First tokens that came at so many tokens a second."""
    for number in range(samples):
        start = bench.now
        _, request = bench.send(text(f"lesson {position} {number} {bench.numbers} ", 4_000), to=position)
        bench.later(1_000 / rate)
        bench.first_token(request)
        bench.end(request)
        assert bench.now > start


def test_first_turns_go_to_the_least_work_times_requests() -> None:
    bench = Bench("smetric", 3)
    bench.send(text("a ", 40_000), to=0)
    bench.send(text("b ", 4_000), to=1)
    bench.load(1, 4)
    bench.load(2, 3)
    scores = [(10_000 + 1_000) * 1, (1_000 + 1_000) * 5, 1_000 * 3]
    assert bench.pick(text("p ", 4_000), messages=1) == scores.index(min(scores)) == 2
    bench.load(2, 8)
    assert bench.pick(text("p ", 4_000), messages=1) == 1, "10,000 against 11,000 twice"


def test_weak_an_idle_instance_scores_nothing_however_much_of_the_prompt_is_elsewhere() -> None:
    bench = Bench("smetric", 2)
    bench.send(PROMPT, to=0)
    assert bench.pick(PROMPT, messages=2) == 1


def test_work_is_released_with_the_first_token_or_the_end() -> None:
    bench = Bench("smetric", 1)
    pending = bench.policy._pending  # type: ignore[attr-defined]
    _, first = bench.send(PROMPT)
    _, second = bench.send(text("b ", 4_000))
    assert pending == {0: 3_048.0}
    bench.first_token(first)
    assert pending == {0: 1_000.0}
    bench.end(first)
    bench.end(second)
    assert pending == {0: 0.0}


def test_a_follow_up_stays_where_the_turn_before_went() -> None:
    bench = Bench("smetric", 2)
    bench.send(PROMPT, to=0, session="s")
    bench.load(0, 20)
    assert bench.pick(NEXT, session="s") == 0
    assert bench.pick(NEXT, session="new") == 1, "a session's first turn"


def test_messages_tell_a_follow_up_from_a_first_turn() -> None:
    bench = Bench("smetric", 2)
    bench.send(PROMPT, to=0)
    bench.load(0, 20)
    assert bench.pick(NEXT, messages=3) == 0, "2,048 > 0.5 * 2,560 / 3"
    assert bench.pick(NEXT, messages=2) == 1, "system prompt and question"


def test_where_nothing_is_known_of_messages_more_than_half_must_be_known() -> None:
    bench = Bench("smetric", 2)
    bench.send(PROMPT, to=0)
    bench.load(0, 20)
    assert bench.pick(NEXT) == 0
    assert bench.pick(PROMPT + text("much more ", 8_192)) == 1


def test_affinity_yields_to_an_instance_that_meets_the_target_and_stays_where_none_does() -> None:
    """Target 1 s + 0.0625 s a thousand tokens: 1.16 s for 2,560 tokens."""
    bench = Bench("smetric", 2)
    for position in (0, 1):
        taught(bench, position, 1_000.0)
    bench.send(PROMPT, to=0, session="s")
    assert bench.pick(NEXT, session="s") == 0, "nobody meets it: 2.56 s here, 2.56 s there"
    other = Bench("smetric", 2)
    for position, rate in ((0, 1_000.0), (1, 10_000.0)):
        taught(other, position, rate)
    other.send(PROMPT, to=0, session="s")
    assert other.pick(NEXT, session="s") == 1, "2.56 s at home, 0.26 s there"


def test_until_eight_samples_the_target_is_taken_to_be_met() -> None:
    bench = Bench("smetric", 2)
    taught(bench, 0, 100.0, samples=7)
    bench.send(PROMPT, to=0, session="s")
    assert bench.pick(NEXT, session="s") == 0
    taught(bench, 0, 100.0, samples=1)
    assert bench.pick(NEXT, session="s") == 1


def test_the_rate_is_the_90th_percentile_of_the_last_64() -> None:
    bench = Bench("smetric", 1)
    taught(bench, 0, 50_000.0, samples=3)
    for number in range(64):
        taught(bench, 0, 100.0 + number, samples=1)
    assert bench.policy._rates[0].rate == pytest.approx(100 + 57, rel=1e-3)  # type: ignore[attr-defined]


def test_attention_makes_long_prompts_more_work() -> None:
    plain, long = Bench("smetric", 1), Bench("smetric-attention", 1)
    _, b, _, q = long.pool.members[0].step_times.coefficients
    for bench in (plain, long):
        bench.send(text("long ", 320_000))
    assert plain.policy._pending[0] == 80_000  # type: ignore[attr-defined]
    assert long.policy._pending[0] == pytest.approx(80_000 * (1 + 40_000 * q / b))  # type: ignore[attr-defined]


def test_a_slot_given_out_again_starts_empty() -> None:
    bench = Bench("smetric", 2)
    _, request = bench.send(PROMPT, to=1, session="s")
    bench.end(request)
    taught(bench, 1, 100.0)
    bench.leave(1)
    bench.join("new")
    bench.load(1, 1)
    assert bench.pick(NEXT, session="s") == 0
    assert 1 not in bench.policy._rates  # type: ignore[attr-defined]
