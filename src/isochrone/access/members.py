"""Exact walk over the members of a JSON object, as text: where each key and value stands.

Slow beside a decoder (some 10 ns a byte), so it is called only on suspicion of a duplicate key or to change a value in
place. The body must be well-formed: a decoder has seen it before.
"""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

TOKENS_MAX = 200_000
"""Keys, strings and brackets that one walk may pass (about 30 ms). More: TooComplex."""

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_KEY = re.compile(rb"[\s,]*(" + _STRING + rb")\s*:\s*", re.DOTALL)
_TOKEN = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)
_SCALAR = re.compile(rb"[^\s,}\]]+")


class TooComplex(Exception):
    """The object holds more than TOKENS_MAX keys, strings and brackets."""


class Member(NamedTuple):
    """One key and where its value stands: `body[start:end]`."""

    key: str
    start: int
    end: int


def members(body: bytes, at: int = 0) -> Iterator[Member]:
    """The members of the object that begins at or after `at`, in order, duplicates included."""
    position = body.index(b"{", at) + 1
    tokens = 0
    while found := _KEY.match(body, position):
        key = found[1]
        name = json.loads(key) if b"\\" in key else key[1:-1].decode()
        end, passed = _end_of_value(body, found.end())
        tokens += 1 + passed
        if tokens > TOKENS_MAX:
            raise TooComplex
        yield Member(name, found.end(), end)
        position = end


def _end_of_value(body: bytes, start: int) -> tuple[int, int]:
    """Where the value that begins at `start` ends, and how many tokens it has."""
    if body[start] not in b'[{"':
        scalar = _SCALAR.match(body, start)
        assert scalar is not None
        return scalar.end(), 1
    depth = 0
    for count, token in enumerate(_TOKEN.finditer(body, start), 1):
        sign = body[token.start()]
        if sign in b"[{":
            depth += 1
        elif sign in b"]}":
            depth -= 1
        if depth == 0:
            return token.end(), count
        if count > TOKENS_MAX:
            raise TooComplex
    raise AssertionError("the body was not well-formed")
