"""Text -> token ids -> the same text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.emulator import tokenizer
from isochrone.emulator.tokenizer import decode, encode, image_tokens

ENGLISH = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, "
    "it was the epoch of belief, it was the epoch of incredulity, it was the season of light."
)


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    ids = encode(text)
    assert decode(ids) == text
    assert all(0 <= token < tokenizer.ID_LIMIT for token in ids)


@given(st.text(alphabet=" abz`{z", max_size=12))
def test_letters_and_spaces_come_back(text: str) -> None:
    assert decode(encode(text)) == text


def test_about_four_bytes_of_english_a_token_and_one_token_a_character_of_chinese() -> None:
    assert 3.3 < len(ENGLISH) / len(encode(ENGLISH)) < 4.5
    assert len(encode("今天天气很好")) == 6


def test_what_no_token_has_is_refused() -> None:
    for token in (-1, 3, 16 + 0x110000, (1 << 21) + 27, tokenizer.ID_LIMIT):
        with pytest.raises(ValueError, match="no token"):
            decode([token])


def test_specials_and_images_have_ids_that_no_text_has() -> None:
    assert decode([tokenizer.TURN_START]) == "<|im_start|>"
    assert tokenizer.TURN_START not in encode("<|im_start|>")
    assert decode(image_tokens(123, 4)) == ""
    assert image_tokens(1, 4) != image_tokens(2, 4)
