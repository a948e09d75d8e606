"""What an emulated model says: a word that follows from ALL tokens before it.

The next token is a function of a 64-bit hash over every token so far, prompt and output alike, and of the model's
seed. So the continuation of a prompt plus the first output tokens is byte for byte the rest of the first answer, on
any instance with the same seed, and one lost, doubled or changed token changes everything behind it. Each word is one
token with its space before it, so the text, cut by the tokenizer again, gives the same tokens: continuing by text
works as well as by ids.
"""

from array import array
from collections.abc import Sequence

import xxhash

from isochrone.emulator.tokenizer import END, encode

_WORD_TEXT = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one
you were all her she there would their we him been has when who will no more if out so up said what its about than
into them can only other time new some could these two may first then do any like my now over such our man me even
most made after also did many off must well back where down way each just those too mr how state good very make
world still own see men work long here get both life under never day same know while last might us great old year
come since go right used take three
"""
WORDS = _WORD_TEXT.split()
"""Common English words of at most five letters, each one token when a space stands before it."""

_TOKENS = [encode(" " + word)[0] for word in WORDS]
_COUNT = len(_TOKENS)
_END_SCALE = 1 << 32


class Continuation:
    """The tokens that follow a prompt, one at a time.

    `mean_output`: mean length of answers that nothing else ends: each token is END with probability 1/mean_output.
    None: never.
    """

    __slots__ = ("_end_below", "_hash")

    def __init__(self, prompt: Sequence[int], seed: int, mean_output: float | None) -> None:
        self._hash = xxhash.xxh64(array("I", prompt).tobytes(), seed=seed)
        self._end_below = int(_END_SCALE / mean_output) if mean_output else 0

    def next(self, may_end: bool) -> int:
        """The next token. `may_end` False: never END (ignore_eos, min_tokens). About 0.2 us."""
        value = self._hash.intdigest()
        token = END if may_end and (value & 0xFFFFFFFF) < self._end_below else _TOKENS[(value >> 32) % _COUNT]
        self._hash.update(token.to_bytes(4, "little"))
        return token


WORD_JSON = {token: (" " + word).encode() for token, word in zip(_TOKENS, WORDS, strict=True)}
"""Token -> its text as it stands inside a JSON string. END has no text."""
WORD_JSON[END] = b""
