"""Made-up text of a wanted length. Same generator state, same text."""

import random

BYTES_PER_TOKEN = 4
"""A common figure for English under today's tokenizers; what a prompt really held is read from `usage`."""

_SYLLABLES = [first + vowel + last for first in "bdfgklmnprstv" for vowel in "aeiou" for last in ("", "n", "r", "s")]


def _words() -> list[str]:
    rng = random.Random(7)
    return ["".join(rng.choices(_SYLLABLES, k=rng.randint(1, 4))) for _ in range(2000)]


_WORDS = _words()


def words(rng: random.Random, tokens: int) -> str:
    """About `tokens` tokens of words, exactly `tokens * BYTES_PER_TOKEN` ASCII bytes."""
    wanted = tokens * BYTES_PER_TOKEN
    parts: list[str] = []
    length = 0
    while length <= wanted:
        more = " ".join(rng.choices(_WORDS, k=max(1, (wanted - length) // 6)))
        parts.append(more)
        length += len(more) + 1
    return " ".join(parts)[:wanted]
