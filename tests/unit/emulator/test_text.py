"""The words follow from all tokens before them."""

from hypothesis import given
from hypothesis import strategies as st

from isochrone.emulator.text import WORD_JSON, WORDS, Continuation
from isochrone.emulator.tokenizer import END, decode, encode

prompts = st.lists(st.integers(0, 2**24), min_size=1, max_size=40)


def words(prompt: list[int], count: int, seed: int = 0) -> list[int]:
    continuation = Continuation(prompt, seed, None)
    return [continuation.next(may_end=True) for _ in range(count)]


@given(prompt=prompts, cut=st.integers(0, 30))
def test_a_continuation_gives_the_rest_from_any_cut(prompt: list[int], cut: int) -> None:
    whole = words(prompt, 30)
    assert words(prompt + whole[:cut], 30 - cut) == whole[cut:]


@given(prompt=prompts, change=st.integers(1, 1000))
def test_another_token_anywhere_changes_the_rest(prompt: list[int], change: int) -> None:
    other = [prompt[0] + change, *prompt[1:]]
    assert words(prompt, 12) != words(other, 12)
    assert words(prompt, 12) != words(prompt, 12, seed=1)


def test_the_text_cut_again_gives_the_same_tokens() -> None:
    tokens = words([1, 2, 3], 200)
    assert encode(decode(tokens)) == tokens
    assert all(WORD_JSON[token].decode() == decode([token]) for token in tokens)
    assert len(set(WORDS)) == len(WORDS)


def test_answers_end_after_about_the_mean() -> None:
    lengths = []
    for nth in range(300):
        continuation = Continuation([nth], seed=0, mean_output=50.0)
        lengths.append(next(count for count in range(1, 10_000) if continuation.next(may_end=True) == END))
    assert 40 < sum(lengths) / len(lengths) < 60


def test_an_answer_that_may_not_end_does_not() -> None:
    continuation = Continuation([7], seed=0, mean_output=2.0)
    assert END not in [continuation.next(may_end=False) for _ in range(100)]
