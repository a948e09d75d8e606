"""Prompt sizes against made-up tokenizers of known ratios."""

import json
import math
import random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.access.promptsize import RATIOS, PromptTokens
from isochrone.nouns.request import PromptSize


class Tokenizer(NamedTuple):
    """Bytes a token of two kinds of text, tokens an image, a message and a prompt."""

    text_bytes: float
    cjk_bytes: float
    image: int
    message: int
    frame: int

    def count(self, size: PromptSize, chance: random.Random | None = None, sigma: float = 0.04) -> int:
        """Tokens of a prompt; texts differ by `sigma` where there is chance."""
        text, cjk = size.text_bytes / self.text_bytes, size.cjk_bytes / self.cjk_bytes
        if chance is not None:
            text, cjk = text * chance.gauss(1.0, sigma), cjk * chance.gauss(1.0, sigma)
        tokens = text + cjk + size.images * self.image + size.messages * self.message
        return size.token_ids + round(tokens + (self.frame if size.messages else 0))


TOKENIZERS = [Tokenizer(4.6, 2.1, 1600, 4, 30), Tokenizer(4.2, 4.4, 256, 5, 20), Tokenizer(3.2, 2.8, 576, 3, 8)]


def english(chance: random.Random) -> PromptSize:
    return PromptSize(text_bytes=int(chance.lognormvariate(7.0, 1.0)) + 20, messages=chance.randint(1, 9))


def chinese(chance: random.Random) -> PromptSize:
    return PromptSize(text_bytes=60, cjk_bytes=int(chance.lognormvariate(7.0, 1.0)) + 20, messages=chance.randint(1, 9))


def mixed(chance: random.Random) -> PromptSize:
    return english(chance) if chance.random() < 0.5 else chinese(chance)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("kind", [english, chinese, mixed])
@pytest.mark.parametrize("seed", range(3))
def test_fifty_answers_teach_to_within_five_percent(tokenizer: Tokenizer, kind: object, seed: int) -> None:
    assert callable(kind)
    prompts, chance = PromptTokens(), random.Random(seed)
    for _ in range(50):
        size = kind(chance)
        prompts.learn("m", size, tokenizer.count(size, chance))
    sizes = [kind(chance) for _ in range(200)]
    estimate = sum(prompts.estimate("m", size) for size in sizes)
    assert estimate == pytest.approx(sum(tokenizer.count(size) for size in sizes), rel=0.05)


def test_the_prior_is_within_half() -> None:
    prompts, chance = PromptTokens(), random.Random(1)
    for tokenizer in TOKENIZERS:
        for _ in range(50):
            size = english(chance)
            assert prompts.estimate("new", size) == pytest.approx(tokenizer.count(size), rel=0.5)


def test_chinese_prompts_do_not_bend_the_ratio_of_english_ones() -> None:
    tokenizer = Tokenizer(4.6, 1.5, 576, 4, 12)
    prompts, chance = PromptTokens(), random.Random(2)
    for _ in range(50):
        size = english(chance)
        prompts.learn("m", size, tokenizer.count(size, chance))
    for _ in range(50):
        size = chinese(chance)
        prompts.learn("m", size, tokenizer.count(size, chance))
    plain = PromptSize(text_bytes=4600, messages=1)
    assert prompts.estimate("m", plain) == pytest.approx(tokenizer.count(plain), rel=0.05)


def test_images_are_learnt_apart() -> None:
    tokenizer = Tokenizer(4.6, 2.1, 3000, 4, 12)
    prompts, chance = PromptTokens(), random.Random(3)
    for i in range(60):
        size = PromptSize(text_bytes=int(chance.lognormvariate(6.0, 1.0)) + 20, images=int(i % 6 == 5), messages=1)
        prompts.learn("m", size, tokenizer.count(size, chance))
    for size in (PromptSize(text_bytes=2000, images=2, messages=1), PromptSize(text_bytes=2000, messages=1)):
        assert prompts.estimate("m", size) == pytest.approx(tokenizer.count(size), rel=0.06)


def test_token_ids_are_exact() -> None:
    prompts = PromptTokens()
    assert prompts.estimate("m", PromptSize(token_ids=1234)) == 1234
    prompts.learn("m", PromptSize(token_ids=1234), 1234)
    assert prompts.learned() == {}
    beside_text = PromptSize(token_ids=1000, text_bytes=400)
    assert prompts.estimate("m", beside_text) == 1100


def test_an_empty_prompt_has_at_least_one_token() -> None:
    assert PromptTokens().estimate("m", PromptSize()) == 1


def test_models_are_told_apart() -> None:
    fine, coarse = Tokenizer(2.0, 2.0, 576, 4, 12), Tokenizer(6.0, 6.0, 576, 4, 12)
    prompts, chance = PromptTokens(), random.Random(4)
    for _ in range(50):
        size = english(chance)
        prompts.learn("fine", size, fine.count(size, chance))
        prompts.learn("coarse", size, coarse.count(size, chance))
    size = PromptSize(text_bytes=6000, messages=1)
    assert prompts.estimate("fine", size) > 2.5 * prompts.estimate("coarse", size)


def test_nonsense_in_between_does_little_harm() -> None:
    tokenizer = TOKENIZERS[0]
    prompts, chance = PromptTokens(), random.Random(5)
    for i in range(200):
        size = english(chance)
        prompts.learn("m", size, 5_000_000 if i % 20 == 19 else tokenizer.count(size, chance))
    size = PromptSize(text_bytes=4000, messages=2)
    assert prompts.estimate("m", size) == pytest.approx(tokenizer.count(size), rel=0.15)


@pytest.mark.parametrize("prompt_tokens", [0, -5, 10**12])
def test_absurd_reports_are_refused(prompt_tokens: int) -> None:
    prompts = PromptTokens()
    prompts.learn("m", PromptSize(text_bytes=100, messages=1), prompt_tokens)
    assert prompts.learned() == {}


def test_the_number_of_models_is_bounded() -> None:
    prompts, size = PromptTokens(models_max=3), PromptSize(text_bytes=4000, messages=1)
    for i in range(100):
        prompts.learn(f"m{i}", size, 2000)
    assert list(prompts.learned()) == ["m0", "m1", "m2"]
    assert prompts.estimate("m99", size) == pytest.approx(2000, rel=0.1)


def test_a_model_that_changes_is_followed() -> None:
    prompts, size = PromptTokens(), PromptSize(text_bytes=4000, messages=1)
    for _ in range(500):
        prompts.learn("m", size, 1000)
    for _ in range(50):
        prompts.learn("m", size, 1500)
    assert prompts.estimate("m", size) == pytest.approx(1500, rel=0.05)


def test_what_was_learnt_comes_back_through_json() -> None:
    prompts, chance = PromptTokens(), random.Random(6)
    for _ in range(50):
        size = mixed(chance)
        prompts.learn("m", size, TOKENIZERS[1].count(size, chance))
    again = PromptTokens()
    assert again.restore(json.loads(json.dumps(prompts.learned())))
    for _ in range(20):
        size = mixed(chance)
        assert again.estimate("m", size) == prompts.estimate("m", size)
    assert again.learned() == prompts.learned()


@pytest.mark.parametrize(
    "entry",
    [
        3,
        {},
        {"ratios": [1.0] * 4, "variances": [0.1] * 5, "samples": 1},
        {"ratios": [1.0, 1.0, 1.0, 1.0, math.nan], "variances": [0.1] * 5, "samples": 1},
        {"ratios": [1.0, 1.0, 1.0, 1.0, -1.0], "variances": [0.1] * 5, "samples": 1},
        {"ratios": [1.0] * 5, "variances": [0.1] * 5, "samples": "1"},
    ],
)
def test_nonsense_is_not_taken_up(entry: object) -> None:
    prompts = PromptTokens()
    assert not prompts.restore({"m": entry})
    assert prompts.learned() == {}


counts = st.integers(0, 10**9)


@given(st.lists(st.tuples(st.builds(PromptSize, counts, counts, st.integers(0, 50), counts, counts), counts)))
def test_ratios_stay_within_their_bounds(lessons: list[tuple[PromptSize, int]]) -> None:
    prompts = PromptTokens()
    for size, prompt_tokens in lessons:
        prompts.learn("m", size, prompt_tokens)
        assert prompts.estimate("m", size) >= 1
    for entry in prompts.learned().values():
        assert isinstance(entry, dict)
        for value, variance, ratio in zip(entry["ratios"], entry["variances"], RATIOS, strict=True):
            assert ratio.least <= value <= ratio.most
            assert 0.0 < variance <= ratio.variance
