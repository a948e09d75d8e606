"""The workload: same seed, same bytes; bursts; level load; conversations that resend themselves."""

import itertools
import statistics

import msgspec
import pytest

from isochrone.loadgen.workload import CHAT, DOCUMENT, EXTRACTION, OUTPUT_FIELD, SHAPES, Turn, workload


def turns(seed: int = 1, **options: float) -> list[Turn]:
    load = workload(seed, "m", warm_s=5, seconds=20, **options)
    return [turn for session in load.sessions for turn in session]


def test_same_seed_same_requests() -> None:
    assert turns(3) == turns(3)
    assert turns(3) != turns(4)


def test_seeds_differ_little_in_work() -> None:
    def prompt_bytes(seed: int) -> int:
        return sum(len(turn.call.body) for turn in turns(seed))

    totals = [prompt_bytes(seed) for seed in range(8)]
    assert statistics.pstdev(totals) / statistics.mean(totals) < 0.2


def test_all_turns_lie_in_the_window_and_the_warm_up_is_not_counted() -> None:
    made = turns()
    assert all(0 <= turn.at_s < 25 for turn in made)
    assert all(turn.counted == (turn.at_s >= 5) for turn in made)
    assert workload(1, "m", warm_s=5, seconds=20).requests == sum(turn.counted for turn in made)


def test_load_is_level_from_the_start() -> None:
    """Sessions that began before the window are in it: without them its first half would be half empty."""
    halves = [0, 0]
    for seed in range(10):
        for turn in turns(seed):
            halves[turn.at_s >= 12.5] += 1
    assert halves[0] / halves[1] == pytest.approx(1.0, abs=0.15)


def test_rate_scale() -> None:
    assert len(turns(rate_scale=2.0)) / len(turns()) == pytest.approx(2.0, abs=0.25)


def test_starts_come_in_bursts() -> None:
    """Gaps between starts of one class: coefficient of variation near what was asked, far above Poisson's 1."""
    spread = []
    for seed in range(10):
        starts = sorted(
            turn.at_s for turn in turns(seed, burst_cv=3.0, rate_scale=10.0) if turn.call.route == EXTRACTION
        )
        gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
        spread.append(statistics.pstdev(gaps) / statistics.mean(gaps))
    assert 2.3 < statistics.mean(spread) < 3.7


def test_a_turn_resends_all_before_it() -> None:
    load = workload(1, "m", warm_s=5, seconds=20)
    longest = max(load.sessions, key=len)
    earlier, later = (msgspec.json.decode(turn.call.body)["messages"] for turn in longest[-2:])
    assert later[: len(earlier)] == earlier
    assert [message["role"] for message in later[len(earlier) :]] == ["assistant", "user"]
    assert longest[-1].gap_s >= SHAPES[longest[-1].call.route].gap_s[0]


def test_shared_prompts_are_shared_and_few() -> None:
    for route in (CHAT, DOCUMENT, EXTRACTION):
        shared = {
            msgspec.json.decode(turn.call.body)["messages"][0]["content"]
            for turn in turns()
            if turn.call.route == route
        }
        assert 1 <= len(shared) <= SHAPES[route].shared_prompts


def test_the_length_of_an_answer_is_not_what_the_client_bounds() -> None:
    for turn in turns():
        body = msgspec.json.decode(turn.call.body)
        assert body[OUTPUT_FIELD] < body["max_tokens"] == SHAPES[turn.call.route].max_tokens
