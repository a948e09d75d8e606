"""The worked example of docs/concepts/equal-cost.md, done again by hand: formulas as the page gives them."""

import pytest

from isochrone.nouns.settings import Settings
from isochrone.scheduling.price import IMPOSED_PLAIN
from scripts.reference import ROOT
from scripts.worked_example import (
    CHUNK,
    GIVEN,
    OUTPUT,
    PROMPT,
    SHORT,
    STEP,
    WAITING_TOKENS,
    Given,
    forecasts,
    terms,
    textbook,
)

PAGE = " ".join((ROOT / "docs" / "concepts" / "equal-cost.md").read_text(encoding="utf-8").split())
WORK_PRICE = Settings().work_price


def step_s(given: Given) -> float:
    return STEP.step_s + STEP.token_s * (given.decoding + 1) + STEP.kv_s * given.decoding * given.context


def work_s(given: Given) -> float:
    left = PROMPT - given.cached
    each = STEP.token_s + step_s(given) / (CHUNK - given.decoding)
    return left * each + STEP.pair_s * left * (PROMPT - left / 2)


def gap_s(given: Given) -> float:
    waiting = len(given.waiting)
    return step_s(given) + STEP.token_s * waiting + STEP.kv_s * WAITING_TOKENS * waiting


def by_hand(given: Given, output: int) -> dict[str, float]:
    work, level, running = work_s(given), given.slow, given.decoding + len(given.waiting)
    return {
        "pending_prefill": sum(given.waiting),
        "slot_wait": 0.0,
        "own_prefill": level * work,
        "own_decode": level * output * gap_s(given),
        "imposed_on_steps": level * output * running * (STEP.token_s + STEP.kv_s * PROMPT),
        "imposed_on_waiting": level * work * len(given.waiting),
        "imposed_on_decoding": level * work * IMPOSED_PLAIN * given.decoding,
        "imposed_on_later": level * work * WORK_PRICE,
        "kv_pressure": 0.0,
    }


@pytest.mark.parametrize("output", [OUTPUT, SHORT])
def test_each_term_is_what_the_page_says(output: int) -> None:
    for given, priced in zip(GIVEN, terms(output), strict=True):
        assert priced == pytest.approx(by_hand(given, output), rel=1e-6)


def test_numbers_in_the_text_are_right() -> None:
    first = GIVEN[0]
    assert f"= {step_s(first):.5f} s. Of the prompt" in PAGE
    assert f"= {work_s(first):.4f} s. Pending" in PAGE
    assert f"= {gap_s(first):.5f} s (nothing" in PAGE
    assert f"{OUTPUT} * {gap_s(first):.5f} = {OUTPUT * gap_s(first):.2f} s" in PAGE
    longer_s, running = STEP.token_s + STEP.kv_s * PROMPT, first.decoding + len(first.waiting)
    assert f"of {running} others longer" in PAGE
    assert f"= {1000 * longer_s:.2f} ms each, {OUTPUT} times: {OUTPUT * running * longer_s:.2f} s" in PAGE
    assert f"{IMPOSED_PLAIN:g} * {first.decoding} * {work_s(first):.3f}" in PAGE
    assert f"{WORK_PRICE:g} * {work_s(first):.3f}" in PAGE


def test_who_wins() -> None:
    long_answer = [sum(one.values()) for one in terms()]
    short_answer = [sum(one.values()) for one in terms(SHORT)]
    assert min(long_answer) == long_answer[1]
    assert min(short_answer) == short_answer[0]
    assert min(textbook()) == textbook()[1]
    assert forecasts()[1][1] < forecasts()[0][1] < forecasts()[2][1]


def test_every_term_is_explained() -> None:
    for name in (*terms()[0], "doing_it_again", "money"):
        assert f"| `{name}` |" in PAGE
