"""A tiny reversible tokenizer: about four bytes of English a token, one token a character in other scripts.

A token is one of
- a word piece: up to five lower-case ASCII letters, with or without one space before them;
- a character: any other Unicode code point, one token each;
- a special token of the chat template, or a placeholder of an image.
Text is cut from left to right, each piece as long as possible, so that `decode(encode(text)) == text` for any text.
The id of a piece is its content written as a number (base 27), so there is no vocabulary to load. No real model has
these ids.
"""

import re
from collections.abc import Iterable

END = 0
"""End of sequence."""
TURN_START = 1
TURN_END = 2
SPECIALS = {END: "<|end|>", TURN_START: "<|im_start|>", TURN_END: "<|im_end|>"}

_CHARACTERS = 16
"""Id of code point 0."""
_PIECES = 1 << 21
"""Id of the first word piece; all code points lie below."""
_LETTERS_MAX = 5
_SPACED = 27**_LETTERS_MAX
"""Added to the id of a piece that has a space before it."""
_IMAGES = 1 << 26
"""Ids from here are image placeholders; all word pieces lie below."""
_IMAGE_KINDS = 1 << 24
ID_LIMIT = _IMAGES + _IMAGE_KINDS
"""All ids are below, so that they fit 32 bits."""

_PIECE = re.compile(f" ?[a-z]{{1,{_LETTERS_MAX}}}|.", re.DOTALL)
_MEMO_PIECES_MAX = 65_536
"""Pieces whose ids are remembered (about 10 MB)."""


class _PieceIds(dict[str, int]):
    """Piece -> id, worked out once."""

    def __missing__(self, piece: str) -> int:
        found = _piece_id(piece)
        if len(self) < _MEMO_PIECES_MAX:
            self[piece] = found
        return found


def _piece_id(piece: str) -> int:
    letters = piece.removeprefix(" ") if len(piece) > 1 else piece
    if not ("a" <= letters <= "zzzzz"):
        return _CHARACTERS + ord(piece)
    number = 0
    for letter in letters:
        number = number * 27 + ord(letter) - 96
    return _PIECES + number + (_SPACED if piece[0] == " " else 0)


_ids = _PieceIds()


def encode(text: str) -> list[int]:
    """Token ids of a text. About 100 ns a token."""
    return [_ids[piece] for piece in _PIECE.findall(text)]


def decode(ids: Iterable[int]) -> str:
    """The text of token ids. Raises ValueError for an id that no token has."""
    return "".join(map(decode_one, ids))


def decode_one(token: int) -> str:
    if token >= _IMAGES and token < ID_LIMIT:
        return ""
    if token >= _PIECES:
        return _piece_text(token)
    if token >= _CHARACTERS and token - _CHARACTERS < 0x110000:
        return chr(token - _CHARACTERS)
    if token in SPECIALS:
        return SPECIALS[token]
    raise ValueError(f"no token has id {token}")


def _piece_text(token: int) -> str:
    spaced, number = divmod(token - _PIECES, _SPACED)
    letters: list[str] = []
    while number:
        number, letter = divmod(number, 27)
        letters.append(chr(96 + letter))
    if spaced > 1 or not letters or "`" in letters:
        raise ValueError(f"no token has id {token}")
    return (" " if spaced else "") + "".join(reversed(letters))


def image_tokens(source_hash: int, count: int) -> list[int]:
    """Placeholders of one image: the same image gives the same ids, so that the prefix cache works for it."""
    return [_IMAGES + source_hash % _IMAGE_KINDS] * count
