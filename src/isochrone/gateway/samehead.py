"""A head that came before is not parsed again.

Clients send the same head with each request of a connection, and an instance the same one with all answers of one
second (the next one has another `date`): only the length of the body differs. A parser does the same with the same
bytes, so where all but that number is as it was, what came of them is taken from the last time. That saves a tenth of
the Python of a short request (`benchmarks/unplugged.py`).
"""

import re
from typing import Generic, TypeVar

T = TypeVar("T")

HEAD_BYTES_MAX = 4096
"""Longest head that is kept."""
DIGITS_MAX = 9
"""Of the number after `content-length`."""
MISSES_MAX = 8
"""After so many heads in a row that were all different, one in so many is looked at."""

_length = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,%d})[ \t]*\r\n" % DIGITS_MAX, re.IGNORECASE).search


class SameHead(Generic[T]):
    """The last head, cut at the number after `content-length`, and what came of it."""

    __slots__ = ("_after", "_before", "_misses", "parsed")

    def __init__(self) -> None:
        self._before = b""
        """Empty: there is none."""
        self._after = b""
        self._misses = 0
        self.parsed: T | None = None
        """What the parser made of it."""

    def is_news(self) -> bool:
        """A head was not known: whether to look at it, as its like may come again."""
        self._misses += 1
        return self._misses <= MISSES_MAX or self._misses % MISSES_MAX == 0

    def learn(self, data: bytes, body_bytes: int, parsed: T) -> None:
        """`data` was parsed, and is a whole message: a head, and a body of as many bytes as the head says."""
        end = len(data) - body_bytes
        if end > HEAD_BYTES_MAX or data.find(b"\r\n\r\n", 0, end) != end - 4:  # or it is not a head alone
            return
        found = _length(data, 0, end)
        if found is not None and int(found[1]) == body_bytes:
            self._before, self._after = data[: found.start(1)], data[found.end(1) : end]
            self.parsed = parsed

    def body_of(self, data: bytes) -> bytes | None:
        """The body of a message with this head, but for the number, that is whole and has nothing behind it."""
        before = self._before
        if not before or not data.startswith(before):
            return None
        start = len(before)
        after = self._after
        end = data.find(after, start, start + DIGITS_MAX + len(after))
        number = data[start:end]
        body_bytes = len(data) - end - len(after)
        if end < 0 or not number.isdigit() or int(number) != body_bytes:
            return None
        self._misses = 0
        return data[len(data) - body_bytes :]
